//! The faults of the other tests on hosts of several ranks each.

use gaspi_tests::victims::{DIE, STOP};
use gaspi_tests::{Result, Seed, Shape, base_seed, is_full};
use libtest_mimic::Trial;

use crate::faults::{PATIENCE_S, interrupted, kill, stop, vanish};
use crate::launched::{killed, launcher_vanishes};
use crate::root_trial;

pub(crate) fn trials() -> Vec<Trial> {
    Shape::all().iter().flat_map(|shape| trials_of(*shape, base_seed())).collect()
}

/// All operations in the full tier, otherwise the one that the seed chooses.
fn drawn(all: &[&'static str], seed: &mut Seed) -> Vec<&'static str> {
    if is_full() { all.to_vec() } else { vec![all[seed.below(all.len() as u64) as usize]] }
}

fn trials_of(shape: Shape, seed: u64) -> Vec<Trial> {
    let mut dice = Seed::new(seed ^ shape.ranks() as u64);
    let mut trials = Vec::new();
    for operation in drawn(&DIE, &mut dice) {
        let what = format!("kill/{operation}");
        trials.push(of(shape, seed, &what, move || kill(operation, seed, Some(shape))));
    }
    for operation in drawn(&STOP, &mut dice) {
        let what = format!("stop/{operation}");
        trials.push(of(shape, seed, &what, move || stop(operation, seed, Some(shape))));
    }
    for (what, cable) in [("cut-and-back", true), ("silence-and-back", false)] {
        trials.push(of(shape, seed, what, move || interrupted(cable, seed, Some(shape))));
    }
    // gaspi_run is on the first one.
    let gone = 1 + dice.below(shape.nodes as u64 - 1) as usize;
    let places = shape.places(&mut dice);
    for (what, word) in [("killed-launcher", "gaspi_run"), ("killed-agent", "--agent")] {
        let places = places.clone();
        trials.push(of(shape, seed, what, move || killed(word, &places)));
    }
    // It takes several seconds; `ssh/launcher-that-vanishes` has two hosts.
    if shape.nodes > 2 {
        let others: Vec<usize> = places.iter().map(|place| place + 1).collect();
        let without = move || launcher_vanishes(&others, Some(PATIENCE_S));
        trials.push(of(shape, seed, "launcher-that-vanishes", without));
    }
    let vanished = move || vanish(&places, gone, Some(PATIENCE_S));
    trials.push(of(shape, seed, "host-that-vanishes", vanished));
    trials
}

fn of(
    shape: Shape,
    seed: u64,
    what: &str,
    run: impl FnOnce() -> Result<()> + Send + 'static,
) -> Trial {
    root_trial(&format!("shapes/{shape}/{what}/seed-{seed}"), run)
}
