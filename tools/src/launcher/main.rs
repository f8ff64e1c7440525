//! gaspi_run: starts the ranks of a GASPI job, here and on other machines, and looks after them.
//!
//! One thread, one loop ([`job`]): it hosts the meeting of the ranks, forwards their output by
//! whole lines ([`printer`]) and the signals that it gets, and reports how they ended ([`report`]).
//! What is to be started is worked out first ([`plan`]), so that a mistake is one message and
//! starts nothing. gaspi_run looks after the ranks of its own machine ([`local_ranks`]); on each
//! other machine an [`agent`] does the same there ([`remote`]). It is reached over ssh, or started
//! with others ([`starter`]) and calls back ([`callback`]).
//!
//! Invariant: ranks do not outlive gaspi_run (the kernel kills them with it or with their agent,
//! which ends when its connection does), and processes are only signalled through pidfds.

#![cfg_attr(fuzzing, no_main)]
#![cfg_attr(fuzzing, allow(dead_code, reason = "a fuzzer calls the protocol only"))]

mod agent;
mod allocation;
mod arguments;
mod assignment;
mod binding;
mod callback;
mod channel;
mod environment;
mod files;
mod hang;
mod identity;
mod info;
mod input;
mod job;
mod limits;
mod local_ranks;
#[cfg(test)]
mod mutated;
mod open_files;
mod output;
mod plan;
mod printer;
mod process;
mod program;
mod protocol;
mod refusal;
mod remote;
mod report;
mod shell_process;
mod ssh_liveness;
mod starter;
mod tail;
mod topology;
mod variables;

use arguments::Arguments;
use clap::Parser;
use gaspi_tools::remote_agent;
use refusal::Refusal;
use std::io::Write;
use std::process::ExitCode;

fn run() -> Result<u8, Refusal> {
    let words = remote_agent::arguments();
    match &words[1..] {
        [word] if word == agent::AGENT => return agent::run(agent::Line::Pipes),
        [word, call_back] if word == agent::AGENT && call_back == agent::CALL_BACK => {
            return agent::run(agent::Line::Callback);
        }
        [word, call_back] if word == agent::AGENT && call_back == agent::MAY_CALL_BACK => {
            return agent::run(agent::Line::Either);
        }
        _ => {}
    }
    let arguments = Arguments::parse_from(words);
    let plan = plan::Plan::new(&arguments)?;
    plan.tell_way();
    if plan.dry_run {
        let written = std::io::stdout().write_all(plan.listed().as_bytes());
        return written.map(|()| 0).map_err(|error| Refusal::launcher(format!("writing: {error}")));
    }
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
