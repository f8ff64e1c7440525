//! A rank of the test of whom errors name where several have died: `first VICTIM [PROGRAM...]`.
//!
//! Rank VICTIM kills itself in front of a barrier, or has its process run another program. The
//! lower half of the others, who learn of it there, print the error and end without proc_term. Each
//! of the rest waits until one of those counts as dead before it calls anything: then it prints the
//! errors of a barrier, and of a ping of that rank, and ends in the same way.
//!
//! With GASPI_TEST_NODES the ranks are spread over so many nodes.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use gaspi::state::State;
use gaspi::{Config, GroupId, PendingInit, Rank, Runtime, Timeout};
use gaspi_tests::job_over_nodes;

/// A guard: nothing may take longer.
const GUARD: Timeout = Timeout::Millis(20_000);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let victim = match arguments.as_slice() {
        [victim, ..] => victim.parse().map(Rank),
        _ => "".parse().map(Rank),
    };
    let Ok(victim) = victim else {
        eprintln!("usage: first VICTIM [PROGRAM...]");
        return ExitCode::from(2);
    };
    if let Err(error) = run(victim, &arguments[1..]) {
        eprintln!("FAILED: {error}");
    }
    // The runtime is not dropped: that would leave the job.
    std::process::exit(1)
}

fn run(victim: Rank, program: &[String]) -> gaspi::Result<()> {
    let rt = PendingInit::new(job_over_nodes()?, Config::default())?.wait(GUARD)?;
    let rt = std::mem::ManuallyDrop::new(rt);
    // The victim may die before all have passed it.
    let _ = rt.barrier(GroupId::ALL, GUARD);
    let me = rt.rank();
    if me == victim {
        if let [name, arguments @ ..] = program {
            let error = Command::new(name).args(arguments).exec();
            println!("{name}: {error}");
        }
        // SAFETY: no memory is passed.
        unsafe { libc::raise(libc::SIGKILL) };
    }
    let survivors: Vec<Rank> =
        (0..rt.size()).map(|rank| Rank(rank as u16)).filter(|rank| *rank != victim).collect();
    let early = survivors.len() / 2;
    let at = survivors.iter().position(|rank| *rank == me).unwrap_or(0);
    let awaited = at.checked_sub(early).map(|at| survivors[at % early]);
    if let Some(awaited) = awaited {
        while rt.state(awaited)? == State::Healthy {
            std::thread::yield_now();
        }
    }
    print_error("barrier", me, rt.barrier(GroupId::ALL, GUARD));
    if let Some(awaited) = awaited {
        ping(&rt, awaited);
    }
    Ok(())
}

fn ping(rt: &Runtime, of: Rank) {
    print_error(&format!("ping of {}", of.0), rt.rank(), rt.ping(of, GUARD));
}

fn print_error(what: &str, me: Rank, outcome: gaspi::Result<()>) {
    match outcome {
        Ok(()) => println!("{what} on {}: no error", me.0),
        Err(error) => println!("{what} on {}: {error}", me.0),
    }
}
