//! After any end of a job nothing is left on the machine: no process, file or socket.

use std::path::Path;

use gaspi_tests::leftovers::{examined, expect_nothing_left};
use gaspi_tests::{Outcome, Result};

fn examine(script: &str) -> Result<Outcome> {
    let victim = Path::new(env!("CARGO_BIN_EXE_victim"));
    expect_nothing_left(examined(script, victim)?.run()?)
}

#[test]
fn the_examination_finds_what_is_left() -> Result<()> {
    for script in ["touch /tmp/x", "touch /dev/shm/x", "(sleep 100 &)"] {
        let found = examine(script).expect_err("the examination has to find it");
        assert!(found.0.contains("LEFT "), "{found}");
    }
    Ok(())
}

#[test]
fn the_examination_finds_a_process_whose_main_thread_has_ended() -> Result<()> {
    let headless = Path::new(env!("CARGO_BIN_EXE_headless"));
    let script = "($victim /mnt/made &) && until [ -e /mnt/made ]; do :; done";
    let outcome = examined(script, headless)?.run()?.success()?.says("examined")?;
    outcome.says("LEFT process").map(drop)
}

#[test]
fn after_an_ordinary_end() -> Result<()> {
    examine("$run -n 3 $victim stop barrier 0")?.says("finished 2").map(drop)
}

#[test]
fn after_kill_of_everything_at_once() -> Result<()> {
    // kill -1 reaches every process of the namespace but this shell.
    examine(
        "$run -n 4 $victim wait none 0 > /mnt/out 2>&1 &
         until_ready $!
         kill -9 -1",
    )
    .map(drop)
}

#[test]
fn after_kill_of_the_launcher() -> Result<()> {
    examine(
        "$run -n 4 $victim wait none 0 > /mnt/out 2>&1 &
         until_ready $!
         kill -9 $!",
    )
    .map(drop)
}

#[test]
fn after_kill_in_the_middle_of_the_start() -> Result<()> {
    examine(
        "for delay in 0.001 0.003 0.006 0.01 0.02; do
             timeout -s KILL $delay $run -n 4 $victim wait none 0 > /mnt/out 2>&1 || true
         done",
    )
    .map(drop)
}

#[test]
fn after_termination_by_signal() -> Result<()> {
    examine(
        "$run -n 4 $victim wait none 0 > /mnt/out 2>&1 &
         until_ready $!
         kill -TERM $!",
    )
    .map(drop)
}
