//! Ranks that die while devices have requests to them under way.

use super::budgets::until_by_device;
use super::*;
use crate::ranks::run_owned_with_devices;
use gaspi_mock_card::Fabric;
use std::sync::Barrier;

const SIZE: u32 = 4;
/// Of one node, in the layout of two and two.
const WAITING: Rank = Rank(0);
const NEIGHBOUR: Rank = Rank(2);
/// Of the other one.
const BYSTANDER: Rank = Rank(1);
const VICTIM: Rank = Rank(3);
/// Long enough for what goes by a socket.
const A_WHILE: Timeout = Timeout::Millis(100);
/// Ten times what is promised of news of a death.
const SOON: Timeout = Timeout::Millis(10_000);

/// The progress thread of a rank waits for its own device, and looks at no socket. A neighbour
/// hears that a rank has died to which that device has a request: who waits for it is told.
fn a_neighbour_that_hears_of_a_death_ends_what_devices_have_with_the_dead() {
    let all = Barrier::new(SIZE as usize);
    // So that messages between the two go by the socket.
    let cut = |fabric: &Fabric| fabric.link(0, 1, 0);
    let ask = |choice: &mut DeviceChoice| {
        (choice.write_end, choice.messages) = (WriteEnd::Auto, MessageCarrier::Device);
    };
    let options = ("", &Config::default());
    run_owned_with_devices(SIZE, options, cut, ask, |rt, fabric| {
        make(&rt, S0, 4096);
        let me = rt.rank();
        if me == WAITING {
            until_by_device(&rt, VICTIM, Q0);
        } else if me != VICTIM {
            let other = if me == NEIGHBOUR { VICTIM } else { WAITING };
            rt.ping(other, LIMIT).expect("it answers");
        }
        all.wait();
        if me == WAITING {
            fabric.hold(0, 1);
            rt.write(&eight(VICTIM), Q0, LIMIT).expect("posted");
        }
        all.wait();
        if me == BYSTANDER {
            // What this asks is the least that has it wait for its device.
            fails!(rt.ping(WAITING, A_WHILE), Error::Timeout { .. });
        }
        all.wait();
        if me == VICTIM {
            die(rt);
            all.wait();
            all.wait();
            return;
        }
        if me == NEIGHBOUR {
            soon("it is dead", || matches!(rt.ping(VICTIM, LIMIT), Err(Error::RankDied { .. })));
        }
        all.wait();
        if me == WAITING {
            let outcome = rt.wait(Q0, SOON);
            fabric.hold(0, 0);
            assert!(matches!(outcome, Err(Error::RequestFailed { .. })), "{outcome:?}");
        }
        all.wait();
    });
}

tests! {
    VERBS_PAIRS:
        a_neighbour_that_hears_of_a_death_ends_what_devices_have_with_the_dead;
}
