//! A process whose main thread has ended, while another one lives: `headless FILE` makes FILE once
//! that is so.

use std::process::ExitCode;
use std::thread::{park, sleep, spawn};
use std::time::Duration;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(1);

/// Whether the main thread of this process has ended.
fn has_ended() -> bool {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, behind)| behind.starts_with('Z'))
}

fn main() -> ExitCode {
    let Some(file) = std::env::args_os().nth(1) else { return ExitCode::FAILURE };
    spawn(move || {
        while !has_ended() {
            sleep(PAUSE);
        }
        if std::fs::write(file, "").is_err() {
            std::process::exit(1);
        }
        loop {
            park();
        }
    });
    // SAFETY: ends this thread alone, whose stack nobody else uses; the other one owns what it has.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    ExitCode::FAILURE
}
