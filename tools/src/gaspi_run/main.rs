//! gaspi_run: starts the ranks of a GASPI job on this machine and looks after them.
//!
//! One thread, one loop ([`job`]): it hosts the meeting of the ranks, forwards their output by whole
//! lines ([`output`]) and the signals that it gets, and reports how they ended ([`report`]). What is
//! to be started is worked out first ([`plan`]), so that a mistake is one message and starts nothing.
//!
//! Invariant: ranks do not outlive gaspi_run (the kernel kills them with it), and processes are only
//! signalled through pidfds.

mod arguments;
mod binding;
mod files;
mod hang;
mod job;
mod output;
mod plan;
mod process;
mod report;
mod topology;

use arguments::Arguments;
use clap::Parser;
use std::process::ExitCode;

/// gaspi_run itself could not do its work (as with `timeout` and `env`).
const EXIT_LAUNCHER: u8 = 125;
/// The job ran longer than --timeout allows (as with `timeout`).
const EXIT_TIMEOUT: u8 = 124;

/// Why no job was started, or why it could not go on, and the status to exit with.
#[derive(Debug)]
struct Refusal {
    status: u8,
    message: String,
}

impl Refusal {
    fn usage(message: impl Into<String>) -> Refusal {
        Refusal { status: 2, message: message.into() }
    }

    fn launcher(message: impl Into<String>) -> Refusal {
        Refusal { status: EXIT_LAUNCHER, message: message.into() }
    }
}

fn run() -> Result<u8, Refusal> {
    let arguments = Arguments::parse();
    let plan = plan::Plan::new(&arguments)?;
    job::Running::start(plan)?.finish()
}

fn main() -> ExitCode {
    match run() {
        Ok(status) => ExitCode::from(status),
        Err(refusal) => {
            eprintln!("gaspi_run: {}", refusal.message);
            ExitCode::from(refusal.status)
        }
    }
}
