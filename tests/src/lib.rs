//! The harness of the tests that run several processes.
//!
//! A test compiles or names a program, starts it as a job under gaspi_run (or without any launcher)
//! and looks at how it ended. Every job runs under a watchdog: when its time is over, the stacks of
//! all its processes are printed and the processes are killed through pidfds. Processes are told
//! apart by a mark in their environment, so that tests may run beside each other and beside
//! anything else on the machine, and so that whatever a job leaves behind is found.

mod built;
mod compile;
pub mod hosts;
mod job;
pub mod leftovers;
mod processes;
mod program;
mod ranks;
mod seed;
mod shapes;
pub mod victims;

pub use built::{
    DeviceNodes, build_directory, device_nodes, gaspi_run, is_full, is_over_devices,
    library_directory, root,
};
pub use compile::{Linkage, c_compiler, fortran, link, make, run_compiler};
pub use job::{Failed, Job, Outcome, Running};
pub use processes::{Pid, Process, monotonic_us};
pub use program::{Product, Program};
pub use ranks::run_rank;
pub use seed::{Seed, base_seed};
pub use shapes::{NODES, Shape, job_over_nodes};

/// The result of a test; the text is what the person reads.
pub type Result<T> = std::result::Result<T, Failed>;

/// Turns the tests of a program into a run of libtest-mimic, or one failing test that says why
/// there are none.
pub fn run_trials(
    arguments: libtest_mimic::Arguments,
    trials: Result<Vec<libtest_mimic::Trial>>,
) -> std::process::ExitCode {
    let trials = trials.unwrap_or_else(|reason| {
        vec![libtest_mimic::Trial::test("prepare", move || Err(reason.into()))]
    });
    libtest_mimic::run(&arguments, trials).exit_code()
}
