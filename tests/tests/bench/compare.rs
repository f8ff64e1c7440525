//! `gaspi-bench compare` without anything from elsewhere: this library alone, beside another
//! library that the test makes, and where there is none.

use crate::{alone, demand, number, objects};
use gaspi_tests::{
    Failed, Job, Outcome, Result, c_compiler, gaspi_run, library_directory, root, run_compiler,
};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Every operation.
const OPERATIONS: [&str; 9] = [
    "barrier",
    "allreduce",
    "reduce",
    "broadcast",
    "reduce-scatter",
    "allgather",
    "alltoall",
    "gather",
    "scatter",
];

/// So few that a row takes no time.
const FEW: [&str; 4] = ["--quick", "--rounds", "2", "--json"];

/// Compilers and three jobs take seconds, of a machine that does much else too.
const LIMIT: Duration = Duration::from_secs(300);

fn compare(directory: &Path, arguments: &[&str]) -> Result<Job> {
    let job = alone(&["compare", "--directory"])?.arg(directory).args(arguments).args(FEW);
    Ok(job.limit(LIMIT))
}

fn check_row(row: &Value, ranks: u64) -> Result<()> {
    demand(row["test"] == "compare" && row["type"] == "f32", "facts", row)?;
    demand(row["ranks"] == ranks && row["errors"] == 0, "ranks and errors", row)?;
    let (min, p50, p99) = (number(row, "min_us")?, number(row, "p50_us")?, number(row, "p99_us")?);
    demand(0.0 < min && min <= p50 && p50 <= p99 && p99 < 60e6, "times are in order", row)?;
    demand(row["size_bytes"].as_u64() == row["elements"].as_u64().map(|all| 4 * all), "size", row)?;
    if row["size_bytes"] != 0 {
        let share = number(row, "bandwidth_gb_s")? / (number(row, "size_bytes")? / p50 / 1e3);
        demand((share - 1.0).abs() < 1e-6, "bandwidth is size by time", row)?;
    }
    Ok(())
}

/// The file of results holds what was printed.
fn check_file(directory: &Path, outcome: &Outcome) -> Result<()> {
    let text = fs::read_to_string(directory.join("results.jsonl"))?;
    if text == outcome.stdout { Ok(()) } else { Err(outcome.failure("the file differs")) }
}

#[test]
fn this_library_alone() -> Result<()> {
    let directory = tempfile::tempdir()?;
    for (ranks, transport, memory) in
        [("2", "shm", "segment"), ("4", "shm", "private"), ("2", "tcp", "segment")]
    {
        let arguments = ["--alone", "-n", ranks, "--transport", transport, "--memory", memory];
        let more = ["--operation", "barrier,allreduce", "-s", "8,4K,100000"];
        let outcome = compare(directory.path(), &[&arguments[..], &more].concat())?.run()?;
        let outcome = outcome.success()?;
        let rows = objects(&outcome)?;
        let sizes: Vec<Option<u64>> = rows.iter().map(|row| row["size_bytes"].as_u64()).collect();
        assert_eq!(sizes, [Some(0), Some(8), Some(4096), Some(100_000)], "{rows:?}");
        for row in &rows {
            check_row(row, ranks.parse().unwrap_or_default())?;
            demand(row["library"] == "gaspi" && row["of_best"].is_null(), "nobody else", row)?;
            demand(row["transport"] == transport && row["memory"] == memory, "choices", row)?;
        }
        check_file(directory.path(), &outcome)?;
        let chart = directory.path().join(format!("allreduce-{ranks}-{transport}-{memory}.svg"));
        assert!(fs::read_to_string(chart)?.ends_with("</svg>\n"));
    }
    Ok(())
}

/// Writes a shell script by another process: a descriptor of this one, inherited by whatever
/// another test starts at the moment, would keep the kernel from executing it.
fn make_script(path: &Path, text: &str) -> Result<()> {
    let mut shell = Command::new("sh");
    shell.args(["-c", "cat > \"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped());
    let mut shell = shell.spawn()?;
    if let Some(mut input) = shell.stdin.take() {
        write!(input, "#!/bin/sh\n{text}\n")?;
    }
    if shell.wait()?.success() { Ok(()) } else { Err(Failed(format!("no {}", path.display()))) }
}

/// Makes what `compare` takes for MPICH that it has fetched already: calls of libgaspi.
fn make_other(directory: &Path) -> Result<()> {
    let prefix = directory.join("mpich");
    for part in ["bin", "include", "lib", "mpich-9.dist-info"] {
        fs::create_dir_all(prefix.join(part))?;
    }
    let sources = root().join("tests/tests/bench");
    fs::copy(sources.join("fake_mpi.h"), prefix.join("include/mpi.h"))?;
    let libraries = library_directory()?;
    let mut compiler = c_compiler(false);
    compiler.args(["-shared", "-fPIC", "-I"]).arg(root().join("include"));
    compiler.arg("-I").arg(prefix.join("include")).arg(sources.join("fake_mpi.c"));
    compiler.arg("-o").arg(prefix.join("lib/libmpi.so")).arg("-L").arg(&libraries);
    compiler.arg("-lgaspi").arg(format!("-Wl,-rpath,{}", libraries.display()));
    run_compiler(&mut compiler)?;
    let launch = format!("exec '{}' --bind none \"$@\"", gaspi_run()?.display());
    make_script(&prefix.join("bin/mpiexec.hydra"), &launch)?;
    fs::write(prefix.join("complete"), "")?;
    Ok(())
}

#[test]
fn beside_another_library() -> Result<()> {
    let directory = tempfile::tempdir()?;
    make_other(directory.path())?;
    let results = directory.path().join("results");
    let output = results.display().to_string();
    let list = OPERATIONS.join(",");
    let operations = ["--operation", &list, "-s", "8,3K", "--output", &output];
    for ranks in ["2", "3"] {
        let more = ["--rivals", "mpich", "-n", ranks];
        let outcome = compare(directory.path(), &[&operations[..], &more].concat())?.run()?;
        let outcome = outcome.success()?;
        check_file(&results, &outcome)?;
        let rows = objects(&outcome)?;
        // Other tests may have all cores for so long that it looks too slow.
        let is_disturbed = |row: &&Value| {
            row["reason"].as_str().is_some_and(|reason| reason.contains("times as long"))
        };
        for row in rows.iter().filter(|row| !is_disturbed(row)) {
            check_row(row, ranks.parse().unwrap_or_default())?;
        }
        let theirs = rows.iter().filter(|row| row["library"] == "mpich");
        let found: BTreeSet<&str> = theirs.filter_map(|row| row["operation"].as_str()).collect();
        assert_eq!(found, BTreeSet::from(OPERATIONS));
        let ours = rows.iter().filter(|row| row["library"] == "gaspi");
        let found: BTreeSet<&str> = ours.filter_map(|row| row["operation"].as_str()).collect();
        assert_eq!(found, BTreeSet::from(OPERATIONS));
        let ours = rows.iter().find(|row| row["library"] == "gaspi" && row["of_best"].is_f64());
        let ours = ours.ok_or_else(|| Failed(format!("ours are missing: {rows:?}")))?;
        demand(ours["best_rival"] == "mpich" && ours["of_best"].is_f64(), "a ratio", ours)?;
        let verdict = ours["goal"].as_f64().map(|goal| number(ours, "of_best").map(|of| of > goal));
        let verdict = verdict.transpose()?;
        demand(verdict.map(Value::from).unwrap_or_default() == ours["goal_met"], "verdict", ours)?;
    }
    let table = alone(&["compare", "--rivals", "mpich", "-s", "8,4K", "--quick", "--rounds", "2"])?;
    let table = table.arg("--directory").arg(directory.path()).limit(LIMIT).run()?.success()?;
    for words in ["MPICH 9", "x best", "allreduce         4K", "geometric mean", "goals are met"] {
        assert!(table.stdout.contains(words), "{words}: {}", table.stdout);
    }
    Ok(())
}

#[test]
fn wrong_results_of_another_library() -> Result<()> {
    let directory = tempfile::tempdir()?;
    make_other(directory.path())?;
    let arguments = ["--rivals", "mpich", "-s", "64", "--operation", "allreduce"];
    let job = compare(directory.path(), &arguments)?.env("FAKE_MPI_WRONG", "1");
    let outcome = job.run()?.code(1)?.says("not what they had to be")?;
    let rows = objects(&outcome)?;
    demand(rows[0]["library"] == "gaspi" && rows[0]["errors"] == 0, "ours is right", &rows[0])?;
    demand(rows[1]["errors"].as_u64() > Some(0), "theirs is wrong", &rows[1])
}

#[test]
fn no_other_library() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let tools = directory.path().join("tools");
    fs::create_dir(&tools)?;
    make_script(&tools.join("python3"), "echo 'ERROR: no network here' >&2; exit 1")?;
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", tools.display());
    let job = compare(directory.path(), &["--rivals", "openmpi,impi"])?.env("PATH", &path);
    let outcome = job.run()?.code(1)?.says("no other library can be compared")?;
    for words in ["Open MPI: cannot get openmpi", "impi-rt and impi-devel", "no network here"] {
        assert!(outcome.stderr.contains(words), "{words}: {}", outcome.stderr);
    }
    assert!(outcome.stdout.is_empty(), "{}", outcome.stdout);
    // One that is there is enough.
    make_other(directory.path())?;
    let arguments = ["--rivals", "openmpi,mpich", "-s", "8", "--operation", "allreduce"];
    let job = compare(directory.path(), &arguments)?.env("PATH", &path);
    let outcome = job.run()?.success()?.says("without Open MPI: cannot get openmpi")?;
    let rows = objects(&outcome)?;
    assert_eq!(rows.len(), 3);
    let reason = rows[0]["reason"].as_str().unwrap_or_default();
    demand(rows[0]["library"] == "openmpi" && reason.contains("no network"), "why", &rows[0])
}

/// Two operations at three sizes each.
const TWO: [&str; 6] =
    ["--rivals", "mpich", "--operation", "allreduce,broadcast", "-s", "8,4K,64K"];

/// The rows of a library in results, as operation, bytes and reason.
fn reasons<'a>(rows: &'a [Value], library: &str) -> Vec<(&'a str, u64, Option<&'a str>)> {
    let own = rows.iter().filter(|row| row["library"] == library);
    let of = |row: &'a Value| {
        let (operation, bytes) = (row["operation"].as_str()?, row["size_bytes"].as_u64()?);
        assert!(row["reason"].is_string() != row["p50_us"].is_f64(), "{row}");
        Some((operation, bytes, row["reason"].as_str()))
    };
    own.filter_map(of).collect()
}

/// A call of the other library that takes so long, in microseconds, is too slow beside ours even
/// where other tests have the cores: ours would have to take 4 ms in most of its calls.
const SLOW_US: &str = "200000";

#[test]
fn a_library_that_is_too_slow_gets_no_figures() -> Result<()> {
    let directory = tempfile::tempdir()?;
    make_other(directory.path())?;
    let job = compare(directory.path(), &TWO)?.env("FAKE_MPI_SLOW_US", SLOW_US);
    let begin = Instant::now();
    let outcome = job.run()?.success()?;
    // Some calls in each row; bursts of 20 calls in two rounds would take 48 s.
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    check_file(directory.path(), &outcome)?;
    let rows = objects(&outcome)?;
    let (ours, theirs) = (reasons(&rows, "gaspi"), reasons(&rows, "mpich"));
    assert_eq!((ours.len(), theirs.len()), (6, 6), "{rows:?}");
    assert!(ours.iter().all(|(.., reason)| reason.is_none()), "{ours:?}");
    let slow = |reason: Option<&str>| reason.is_some_and(|text| text.contains("times as long"));
    assert!(theirs.iter().all(|(.., reason)| slow(*reason)), "{theirs:?}");
    let table = alone(&["compare", "--quick", "--rounds", "2", "--directory"])?;
    let table = table.arg(directory.path()).args(TWO).env("FAKE_MPI_SLOW_US", SLOW_US);
    let table = table.limit(LIMIT).run()?.success()?;
    let notes = table.stdout.matches("\n# MPICH: - at 8, 4K, 64K: a call takes").count();
    assert_eq!(notes, 2, "{}", table.stdout);
    let row = table.stdout.lines().find(|line| line.starts_with("broadcast         4K"));
    let cells: Vec<&str> = row.unwrap_or_default().split_whitespace().collect();
    assert_eq!((cells.len(), cells[3], cells[4]), (7, "-", "-"), "{}", table.stdout);
    Ok(())
}

#[test]
fn a_library_that_does_not_answer_or_ends_is_left_out_of_the_rest() -> Result<()> {
    let directory = tempfile::tempdir()?;
    make_other(directory.path())?;
    for (variable, words) in [
        ("FAKE_MPI_HANG", "2 of 2 ranks did not answer within 10s"),
        ("FAKE_MPI_END", "a rank has ended"),
    ] {
        let job = compare(directory.path(), &TWO)?.env(variable, "1024");
        let begin = Instant::now();
        let outcome = job.run()?.success()?;
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
        check_file(directory.path(), &outcome)?;
        let rows = objects(&outcome)?;
        let (ours, theirs) = (reasons(&rows, "gaspi"), reasons(&rows, "mpich"));
        assert!(ours.len() == 6 && ours.iter().all(|(.., reason)| reason.is_none()), "{ours:?}");
        assert_eq!((theirs.len(), theirs[0]), (6, ("allreduce", 8, None)), "{theirs:?}");
        for (.., reason) in &theirs[1..] {
            assert!(reason.is_some_and(|reason| reason.contains(words)), "{reason:?}");
        }
        if variable == "FAKE_MPI_END" {
            assert!(theirs[5].2.is_some_and(|reason| reason.contains("it rains")), "{theirs:?}");
        }
        let outcome = outcome.says("from 4K on without MPICH: ")?;
        outcome.says("MPICH: has ended, see above")?;
    }
    Ok(())
}
