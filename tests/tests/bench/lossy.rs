//! gaspi-bench beside a library that loses writes: what it finds, and how much of it.

use crate::{FEW, launched, number};
use gaspi_tests::{Linkage, Outcome, Product, Result, make, root};
use std::path::PathBuf;

/// The library, in a directory that lives as long.
fn lossy() -> Result<(tempfile::TempDir, PathBuf)> {
    let directory = tempfile::tempdir()?;
    let library = directory.path().join("lossy.so");
    let source = root().join("tests/tests/bench/lossy.c");
    make(&source, &library, false, Product::SharedLibrary, Linkage::Shared)?;
    Ok((directory, library))
}

/// Two ranks, of which `rank` loses writes of 24 bytes by a queue.
fn run(arguments: &[&str], rank: &str, queue: &str) -> Result<Outcome> {
    let (_directory, library) = lossy()?;
    let job = launched(2, arguments)?.args(["-s", "24", "--json"]).args(FEW);
    let job = job.env("GASPI_LIBRARY", library).env("LOSSY_SIZE", "24");
    job.env("LOSSY_RANK", rank).env("LOSSY_QUEUE", queue).run()
}

#[test]
fn both_directions_and_all_queues_are_compared() -> Result<()> {
    let arguments = ["write-bw", "--both-ways", "--queues", "4"];
    for (rank, queue) in [("0", "0"), ("1", "0"), ("0", "3"), ("1", "2")] {
        run(&arguments, rank, queue)?.code(1)?.says("errors in the data")?;
    }
    // The fifth queue is not used.
    run(&arguments, "1", "4")?.success().map(drop)
}

#[test]
fn errors_that_several_rows_have_in_common_count_once() -> Result<()> {
    let outcome = run(&["write-lat"], "0", "0")?.code(1)?;
    let rows = crate::objects(&outcome)?;
    assert_eq!(rows.len(), 2, "{rows:?}");
    let errors = number(&rows[0], "errors")?;
    assert!(errors > 0.0 && rows[1]["errors"] == rows[0]["errors"], "{rows:?}");
    outcome.says(&format!(" {errors} errors in the data"))?;
    Ok(())
}
