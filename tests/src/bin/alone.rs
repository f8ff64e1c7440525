//! A rank that waits for the others of its job for half a second, and says what it waited for.

use std::process::ExitCode;

use gaspi::{Config, Error, Job, PendingInit, Runtime, Timeout};

const LIMIT: Timeout = Timeout::Millis(500);

fn join() -> gaspi::Result<Runtime> {
    PendingInit::new(Job::from_environment_within(LIMIT)?, Config::default())?.wait(LIMIT)
}

fn main() -> ExitCode {
    match join() {
        Err(Error::Timeout { pending }) => {
            println!("timed out: {pending}");
            ExitCode::SUCCESS
        }
        other => {
            eprintln!("{:?}", other.map(drop));
            ExitCode::FAILURE
        }
    }
}
