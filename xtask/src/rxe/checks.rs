//! The list of checks, and running one in guests or on this machine.
//!
//! A check is a shell script that runs on each of its guests at the same time, with
//! `checks/prelude.sh` before it. All of them end with status 0 when the check holds.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::figures::{self, Figure};
use super::guest::Guest;
use crate::process::{self, End};
use crate::{Result, workspace};

const PRELUDE: &str = include_str!("checks/prelude.sh");

/// One check.
pub(super) struct Check {
    pub(super) name: &'static str,
    /// How many guests it runs in.
    pub(super) guests: usize,
    /// Whether it can also run on this machine, beside a real card.
    pub(super) outside: bool,
    /// Whether it is of the full tier only.
    pub(super) full_only: bool,
    /// The test programs that it runs, each behind its package.
    pub(super) tests: &'static [[&'static str; 2]],
    /// After so many seconds it hangs, on a machine with two cores.
    guard_s: u64,
    script: &'static str,
}

const fn check(name: &'static str, guests: usize, guard_s: u64, script: &'static str) -> Check {
    Check { name, guests, outside: false, full_only: false, tests: &[], guard_s, script }
}

impl Check {
    const fn outside(self) -> Check {
        Check { outside: true, ..self }
    }

    const fn of(self, tests: &'static [[&'static str; 2]]) -> Check {
        Check { tests, ..self }
    }

    const fn only_in_full(self) -> Check {
        Check { full_only: true, ..self }
    }

    fn text(&self) -> String {
        format!("{PRELUDE}{}", self.script)
    }

    fn guard(&self) -> Duration {
        Duration::from_secs(self.guard_s).mul_f64(time_scale())
    }
}

/// The program of the conformance suite.
const CONFORMANCE: &[[&str; 2]] = &[["gaspi-core", "conformance"]];
/// Those of the collective operations.
const COLLECTIVES: &[[&str; 2]] = &[
    ["gaspi-collectives", "operations"],
    ["gaspi-collectives", "standard"],
    ["gaspi-collectives", "stable"],
    ["gaspi-collectives", "fusion"],
    ["gaspi-collectives", "trouble"],
];

/// In this order: the first one of each kind of world makes the card that the others use.
pub(super) const CHECKS: [Check; 21] = [
    check("one/device", 1, 60, include_str!("checks/device.sh")),
    check("one/pingpong", 1, 60, include_str!("checks/pingpong.sh")).outside(),
    check("one/programs", 1, 180, include_str!("checks/programs.sh")).outside(),
    check("one/verbs", 1, 180, include_str!("checks/verbs.sh")).outside(),
    check("one/conformance", 1, 300, include_str!("checks/conformance.sh"))
        .outside()
        .of(CONFORMANCE),
    check("one/suite", 1, 2400, include_str!("checks/suite.sh"))
        .outside()
        .only_in_full()
        .of(CONFORMANCE),
    check("one/collectives", 1, 1800, include_str!("checks/collectives.sh"))
        .outside()
        .only_in_full()
        .of(COLLECTIVES),
    check("one/faults", 1, 240, include_str!("checks/faults.sh")).outside(),
    check("one/memory", 1, 120, include_str!("checks/memory.sh")),
    check("one/bench", 1, 360, include_str!("checks/bench.sh")).outside(),
    check("two/device", 2, 60, include_str!("checks/device.sh")),
    check("two/perftest", 2, 120, include_str!("checks/perftest.sh")),
    check("two/job", 2, 240, include_str!("checks/job.sh")),
    check("two/verbs", 2, 180, include_str!("checks/two_verbs.sh")),
    check("two/kill", 2, 60, include_str!("checks/kill.sh")),
    check("two/cut", 2, 120, include_str!("checks/cut.sh")),
    check("two/port", 2, 120, include_str!("checks/port.sh")),
    check("two/lossy_cut", 2, 120, include_str!("checks/lossy_cut.sh")),
    check("two/long_cut", 2, 150, include_str!("checks/long_cut.sh")),
    check("two/long_lossy_cut", 2, 150, include_str!("checks/long_lossy_cut.sh")),
    // The last one: a guest is gone after it.
    check("two/off", 2, 120, include_str!("checks/off.sh")),
];

/// The C programs of the tests that checks run, below the root of the checkout.
pub(super) const PROGRAMS: [&str; 13] = [
    "tests/c/atomics.c",
    "tests/c/groups.c",
    "tests/c/notifications.c",
    "tests/c/onesided.c",
    "tests/c/passive.c",
    "tests/c/queues.c",
    "tests/c/segments.c",
    "tests/c/threads.c",
    "tests/guests/again.c",
    "tests/guests/carriers.c",
    "tests/guests/faults.c",
    "tests/guests/memory.c",
    "tests/guests/ring.c",
];

/// By how much all guards are longer, for machines that are slower or busier.
pub(super) fn time_scale() -> f64 {
    let scale = std::env::var("GASPI_TEST_TIME_SCALE").ok();
    scale.and_then(|text| text.parse().ok()).filter(|scale| *scale > 0.0).unwrap_or(1.0)
}

/// What a check gave.
#[derive(Default)]
pub(super) struct Report {
    /// What its scripts wrote, with a line of its own before each guest's.
    pub(super) output: String,
    pub(super) figures: Vec<Figure>,
    /// Why it failed, if it did.
    pub(super) failure: Option<String>,
}

impl Report {
    fn add(&mut self, place: &str, output: &str, failure: Option<String>) {
        self.output.push_str(&format!("-- {place}\n{output}"));
        self.figures.extend(figures::read(output));
        if let Some(reason) = failure {
            self.failure.get_or_insert(format!("{place}: {reason}"));
        }
    }
}

/// Runs a check in guests, which all are up. `number` is of this check alone.
pub(super) fn run(check: &Check, number: u32, guests: &mut [Guest]) -> Result<Report> {
    for guest in guests.iter_mut() {
        guest.begin(number, &check.text(), check.guard())?;
    }
    let mut report = Report::default();
    // The guests kill what takes too long; this is for guests that answer no more.
    let end = Instant::now() + check.guard() + Duration::from_secs(30).mul_f64(time_scale());
    let mut running: Vec<usize> = (0..guests.len()).collect();
    while let Some(&next) = running.first() {
        running.rotate_left(1);
        let place = format!("guest {next}");
        let found = guests[next].poll(number, Duration::from_millis(100))?.cloned();
        for off in guests[next].wanted_off() {
            guests[off].switch_off();
            running.retain(|one| *one != off);
        }
        if let Some(outcome) = found {
            running.retain(|one| *one != next);
            let status = outcome.status.unwrap_or(-1);
            let failure = (status != 0).then(|| format!("ended with status {status}"));
            report.add(&place, &outcome.output, failure);
        } else if Instant::now() > end {
            running.retain(|one| *one != next);
            report.add(&place, "", Some("answers no more".into()));
        }
    }
    Ok(report)
}

/// Runs a check on this machine with the card `device`.
pub(super) fn run_outside(check: &Check, device: &str, programs: &Path) -> Result<Report> {
    let mut command = Command::new("sh");
    command.arg("-c").arg(check.text());
    command.env("device", device).env("release", workspace::release()).env("programs", programs);
    let mut output = String::new();
    let end = process::guarded(&mut command, check.guard(), |line| {
        output.push_str(line);
        output.push('\n');
    })?;
    let mut report = Report::default();
    let failure = match end {
        End::Success => None,
        End::Failure(reason) => Some(reason),
    };
    report.add(device, &output, failure);
    Ok(report)
}
