//! Several hosts: the harness itself, jobs over hosts, and their faults.

mod by_hand;
mod called_back;
mod disks;
mod faults;
mod harness;
mod job;
mod launched;
mod links;
mod meeting;
mod shapes;
mod tarantella;
mod watches;

use std::process::ExitCode;
use std::time::Duration;

use gaspi_tests::hosts::{Options, enter_world, is_root};
use gaspi_tests::{Failed, Result, build_directory, is_full, run_trials};
use libtest_mimic::{Arguments, Trial};

/// A guard for what takes milliseconds.
const GUARD: Duration = Duration::from_secs(20);
/// Has the program make hosts and stay, for the test of what is left when it is killed.
const STAY: &str = "--stay";

/// For the full tier until it has been steady for long: where cores are rare, what comes through
/// between interruptions may be so little that the host counts as silent.
const ONLY_IN_FULL: [&str; 2] = ["silence-and-back", "parted-for-good"];

const PLAIN: Options =
    Options { ipv4: true, ipv6: true, docker: false, own_name_is_loopback: false };
const ONLY_IPV6: Options = Options { ipv4: false, ..PLAIN };
/// Addresses that lead somewhere else than their owner thinks.
const TRAPPED: Options = Options { docker: true, own_name_is_loopback: true, ..PLAIN };

fn main() -> ExitCode {
    enter_world();
    if std::env::args().any(|argument| argument == STAY) {
        return harness::stay();
    }
    let mut arguments = Arguments::from_args();
    // One at a time: each keeps all cores busy.
    arguments.test_threads.get_or_insert(1);
    run_trials(arguments, build_directory().map(|_| trials()))
}

fn trials() -> Vec<Trial> {
    let mut trials = harness::trials();
    trials.extend(by_hand::trials());
    trials.extend(meeting::trials());
    trials.extend(launched::trials());
    trials.extend(called_back::trials());
    trials.extend(disks::trials());
    trials.extend(faults::trials());
    trials.extend(shapes::trials());
    trials.extend(tarantella::trials());
    trials.extend(links::trials());
    trials.extend(watches::trials());
    let is_for_full = |name: &str| ONLY_IN_FULL.iter().any(|part| name.contains(part));
    trials.retain(|trial| is_full() || !is_for_full(trial.name()));
    trials
}

fn trial(name: &str, run: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    Trial::test(name, move || run().map_err(Into::into))
}

/// What root alone can do. Somebody else is told that it was not done; CI is never somebody else.
fn root_trial(name: &str, run: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    let runs = is_root() || std::env::var("CI").is_ok_and(|value| value == "true");
    if !runs {
        println!("NOT RUN: {name} needs root");
    }
    trial(name, run).with_ignored_flag(!runs)
}

fn failed(what: impl Into<String>) -> Failed {
    Failed(what.into())
}

/// Fails with a text unless it is so.
fn expect(is_so: bool, what: impl Into<String>) -> Result<()> {
    if is_so { Ok(()) } else { Err(failed(what)) }
}
