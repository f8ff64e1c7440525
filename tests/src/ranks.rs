//! How the programs of tests that are ranks of a job begin and end.

use std::fmt::Display;
use std::process::ExitCode;

/// Does what a rank does with its arguments; `None` says that it does not take these. How it failed
/// is told with the number of the rank.
pub fn run_rank<E: Display>(
    usage: &str,
    body: impl FnOnce(&[&str]) -> Option<Result<(), E>>,
) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match body(&arguments) {
        None => {
            eprintln!("usage: {usage}");
            ExitCode::from(2)
        }
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(reason)) => {
            let rank = std::env::var("GASPI_RANK").unwrap_or_default();
            eprintln!("FAILED on rank {rank}: {reason}");
            ExitCode::FAILURE
        }
    }
}
