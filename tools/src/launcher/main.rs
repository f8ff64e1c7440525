//! gaspi_run: starts the ranks of a GASPI job, here and on other machines, and looks after them.
//!
//! One thread, one loop ([`job`]): it hosts the meeting of the ranks, forwards their output by
//! whole lines ([`printer`]) and the signals that it gets, and reports how they ended ([`report`]).
//! What is to be started is worked out first ([`plan`]), so that a mistake is one message and
//! starts nothing. gaspi_run looks after the ranks of its own machine ([`local_ranks`]); on each
//! other machine an [`agent`], reached over ssh ([`remote`]), does the same there.
//!
//! Invariant: ranks do not outlive gaspi_run (the kernel kills them with it or with their agent,
//! which ends when its connection does), and processes are only signalled through pidfds.

#![cfg_attr(fuzzing, no_main)]
#![cfg_attr(fuzzing, allow(dead_code, reason = "a fuzzer calls the protocol only"))]

mod agent;
mod arguments;
mod assignment;
mod binding;
mod channel;
mod environment;
mod files;
mod hang;
mod identity;
mod input;
mod job;
mod limits;
mod local_ranks;
mod output;
mod plan;
mod printer;
mod process;
mod program;
mod protocol;
mod remote;
mod report;
mod ssh_liveness;
mod topology;

use arguments::Arguments;
use clap::Parser;
use gaspi_tools::remote_agent;
use std::process::ExitCode;

/// gaspi_run itself could not do its work (as with `timeout` and `env`).
const EXIT_LAUNCHER: u8 = 125;
/// The job ran longer than --timeout allows (as with `timeout`).
const EXIT_TIMEOUT: u8 = 124;
/// A host could not be reached or was lost (as with ssh).
const EXIT_HOST: u8 = 255;
/// Makes this program an agent.
const AGENT: &str = "--agent";

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
    let words = remote_agent::arguments();
    if words.len() == 2 && words[1] == AGENT {
        return agent::run();
    }
    let arguments = Arguments::parse_from(words);
    let plan = plan::Plan::new(&arguments)?;
    job::Running::new(plan)?.run()
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| protocol::take_apart(bytes));

fn main() -> ExitCode {
    match run() {
        Ok(status) => ExitCode::from(status),
        Err(refusal) => {
            eprintln!("gaspi_run: {}", refusal.message);
            ExitCode::from(refusal.status)
        }
    }
}
