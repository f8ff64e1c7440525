//! gaspi-bench: what its rows and tables hold, whatever the figures are.

mod closed_proc;
mod collectives;
mod compare;
mod fused;
mod lossy;
mod resources;
mod scale;
mod tables;
mod tcp;
mod verbs;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use gaspi_tests::{Failed, Job, Outcome, Process, Result, gaspi_run};
use serde_json::Value;

/// So few operations that a test takes no time.
const FEW: [&str; 2] = ["--iterations", "20"];

/// What each row of each test consists of, whatever its test.
const KEYS: [&str; 10] = [
    "bandwidth_gb_s",
    "errors",
    "limit",
    "memory",
    "of_limit",
    "ranks",
    "size_bytes",
    "test",
    "transport",
    "variant",
];

/// A test, its variants, and sizes that it is asked for.
struct Case {
    test: &'static str,
    variants: &'static [&'static str],
    sizes: &'static [u64],
}

const fn case(
    test: &'static str,
    variants: &'static [&'static str],
    sizes: &'static [u64],
) -> Case {
    Case { test, variants, sizes }
}

/// Tests between two ranks.
const PAIRED: [Case; 9] = [
    case("write-lat", &["post", "post+wait"], &[1, 8, 2048]),
    case("write-bw", &["write"], &[8, 65536]),
    case("read-lat", &["read+wait"], &[1, 8, 2048]),
    case("read-bw", &["read"], &[8, 65536]),
    case("write-notify-lat", &["notified"], &[1, 8, 1000]),
    case("write-notify-lat", &["notified", "taken"], &[4096, 65536]),
    case("passive-lat", &["send and receive"], &[1, 8, 65535]),
    case("notify-rate", &["notify", "waitsome-test", "reset"], &[]),
    case("atomic-lat", &["fetch_add", "compare_swap", "fetch_add by both"], &[]),
];

/// The same over TCP, where somebody has to answer: a target that waits in the library, or its
/// thread.
const PAIRED_TCP: [Case; 9] = [
    case("write-lat", &["post", "post+wait", "post+wait, away"], &[1, 8, 4096]),
    case("write-bw", &["write"], &[8, 65536, 1 << 20]),
    case("read-lat", &["read+wait", "read+wait, away"], &[1, 8, 4096]),
    case("read-bw", &["read"], &[8, 65536]),
    case("write-notify-lat", &["notified"], &[1, 8, 1000]),
    case("write-notify-lat", &["notified", "taken"], &[4096, 300_000]),
    case("passive-lat", &["send and receive"], &[1, 8, 65535]),
    case("notify-rate", &["notify", "waitsome-test", "reset"], &[]),
    case("atomic-lat", &["fetch_add", "compare_swap", "fetch_add by both", "fetch_add, away"], &[]),
];
const TCP: [&str; 2] = ["--transport", "tcp"];

/// Tests of any number of ranks.
const OF_ALL: [Case; 2] = [
    case("barrier", &["barrier"], &[]),
    case("allreduce-standard", &["sum f64"], &[8, 72, 2040, 8192]),
];

fn bench() -> Result<PathBuf> {
    Ok(gaspi_run()?.with_file_name("gaspi-bench"))
}

/// gaspi-bench as the ranks of a job under gaspi_run.
fn launched(ranks: u32, arguments: &[&str]) -> Result<Job> {
    Ok(Job::launched(ranks, &bench()?)?.args(arguments))
}

/// gaspi-bench started by itself.
fn alone(arguments: &[&str]) -> Result<Job> {
    Ok(Job::plain(&bench()?).args(arguments))
}

/// The objects that a run printed, which has printed nothing else.
fn objects(outcome: &Outcome) -> Result<Vec<Value>> {
    outcome
        .stdout
        .lines()
        .map(|line| match serde_json::from_str(line) {
            Ok(value @ Value::Object(_)) => Ok(value),
            _ => Err(outcome.failure(&format!("{line:?} is no object of JSON"))),
        })
        .collect()
}

fn rows(ranks: u32, arguments: &[&str]) -> Result<Vec<Value>> {
    objects(&launched(ranks, arguments)?.arg("--json").run()?.success()?)
}

fn demand(is_so: bool, what: &str, row: &Value) -> Result<()> {
    if is_so { Ok(()) } else { Err(Failed(format!("{what}: {row}"))) }
}

fn number(row: &Value, key: &str) -> Result<f64> {
    row[key].as_f64().ok_or_else(|| Failed(format!("{key} is to be a number: {row}")))
}

/// What holds for the figures of every row that shows a time.
fn check_row(row: &Value, ranks: u32) -> Result<()> {
    check_row_of(1.0, row, ranks)
}

/// The same where several pairs measure together.
fn check_row_of(pairs: f64, row: &Value, ranks: u32) -> Result<()> {
    check_row_over("shm", pairs, row, ranks)
}

/// The same by a transport.
fn check_row_over(transport: &str, pairs: f64, row: &Value, ranks: u32) -> Result<()> {
    for key in KEYS {
        demand(row.get(key).is_some(), &format!("{key} is missing"), row)?;
    }
    demand(row["ranks"] == ranks && row["errors"] == 0, "facts", row)?;
    demand(row["transport"] == transport, "the transport", row)?;
    demand(row["memory"].as_str().is_some_and(|memory| !memory.is_empty()), "memory", row)?;
    let (p50, p99, min) = (number(row, "p50_us")?, number(row, "p99_us")?, number(row, "min_us")?);
    demand(0.0 < min && min <= p50 && p50 <= p99, "times are in order", row)?;
    // A minute for one operation of a batch is no measurement.
    demand(p99 < 60e6, "times are in microseconds", row)?;
    if let Some(size) = row["size_bytes"].as_f64() {
        let share = number(row, "bandwidth_gb_s")? / (size * pairs / p50 / 1e3);
        demand((share - 1.0).abs() < 1e-6, "bandwidth is size by time", row)?;
    }
    let Some(of_limit) = row["of_limit"].as_f64() else {
        return demand(row["limit"].is_null(), "a limit has a ratio", row);
    };
    let ratio = match row.get("limit_gb_s") {
        Some(_) => number(row, "bandwidth_gb_s")? / number(row, "limit_gb_s")?,
        None if is_share(row) => number(row, "limit_us")? / p50,
        None => p50 / number(row, "limit_us")?,
    };
    demand((of_limit / ratio - 1.0).abs() < 1e-6, "of_limit is the ratio", row)
}

/// Rows of times that show which share of the limit's speed is reached.
fn is_share(row: &Value) -> bool {
    row["variant"] == "taken" || row["variant"] == "threads"
}

/// Runs a test and demands its rows, size by size.
fn check(case: &Case, ranks: u32, more: &[&str]) -> Result<Vec<Value>> {
    let list: Vec<String> = case.sizes.iter().map(u64::to_string).collect();
    let list = list.join(",");
    let mut arguments = vec![case.test];
    arguments.extend(FEW);
    if !case.sizes.is_empty() {
        arguments.extend(["--sizes", &list]);
    }
    arguments.extend(more);
    let rows = rows(ranks, &arguments)?;
    let sizes: Vec<Value> = match case.sizes {
        [] => vec![Value::Null],
        sizes => sizes.iter().map(|size| (*size).into()).collect(),
    };
    let expected: Vec<(Value, Value)> = sizes
        .iter()
        .flat_map(|size| case.variants.iter().map(|name| (Value::from(*name), size.clone())))
        .collect();
    let found: Vec<(Value, Value)> =
        rows.iter().map(|row| (row["variant"].clone(), row["size_bytes"].clone())).collect();
    assert_eq!(found, expected, "{arguments:?} on {ranks} ranks");
    for row in &rows {
        demand(row["test"] == case.test, "the name of the test", row)?;
        let transport = if more.contains(&"tcp") { "tcp" } else { "shm" };
        let pairs = if more.contains(&"--pairs") { 2.0 } else { 1.0 };
        check_row_over(transport, pairs, row, ranks)?;
    }
    Ok(rows)
}

#[test]
fn rows_of_pairs() -> Result<()> {
    for case in &PAIRED {
        for row in check(case, 2, &[])? {
            demand(row["of_limit"].is_f64(), "a pair has a limit", &row)?;
        }
        check(case, 4, &[])?;
    }
    Ok(())
}

#[test]
fn rows_of_all_ranks() -> Result<()> {
    for case in &OF_ALL {
        for ranks in [1, 2, 3, 4] {
            for row in check(case, ranks, &[])? {
                demand(row["of_limit"].is_f64() == (ranks > 1), "a limit", &row)?;
            }
        }
    }
    Ok(())
}

#[test]
fn every_batch_checked_and_buffers_that_rotate() -> Result<()> {
    for case in &PAIRED {
        check(case, 2, &["--check", "--warmup", "0"])?;
        if !case.sizes.is_empty() {
            let rows = check(case, 2, &["--check", "--cold"])?;
            let is_cold = |row: &Value| row["memory"].as_str().is_some_and(|m| m.contains("cold"));
            assert!(rows.iter().all(is_cold), "{rows:?}");
        }
    }
    check(&OF_ALL[1], 2, &["--check", "--cold"])?;
    check(&OF_ALL[0], 4, &["--check"])?;
    Ok(())
}

#[test]
fn several_pairs_and_threads() -> Result<()> {
    for case in PAIRED.iter().filter(|case| !case.sizes.is_empty() && case.test != "passive-lat") {
        check(case, 4, &["--pairs", "2"])?;
    }
    check(&case("write-rate", &["1 thread"], &[8, 1024]), 2, &[])?;
    let threads = case("write-rate", &["1 thread", "threads"], &[8, 1024]);
    for count in ["2", "10"] {
        let rows = check(&threads, 2, &["--threads", count])?;
        demand(number(&rows[0], "rate_million_s")? > 0.0, "a rate", &rows[0])?;
    }
    Ok(())
}

#[test]
fn writes_of_both_ranks_at_once() -> Result<()> {
    let sizes = ["write-bw", "--both-ways", "--sizes", "8,64K", "--check"];
    for (ranks, pairs) in [(2, "1"), (4, "2")] {
        for queues in ["1", "4"] {
            let arguments = [&sizes[..], &FEW, &["--pairs", pairs, "--queues", queues]].concat();
            let rows = rows(ranks, &arguments)?;
            assert_eq!(rows.len(), 2);
            for row in rows {
                demand(row["test"] == "write-bw" && row["variant"] == "both ways", "names", &row)?;
                check_row_of(f64::from(ranks), &row, ranks)?;
            }
        }
    }
    Ok(())
}

#[test]
fn a_target_that_sleeps() -> Result<()> {
    for (sleeping, delay_us) in [("--sleeping", 400.0), ("--sleeping=3000", 3000.0)] {
        let begin = Instant::now();
        let arguments = ["write-notify-lat", sleeping, "--sizes", "1,8,4096", "--check"];
        let rows = rows(2, &[&arguments[..], &FEW].concat())?;
        let took_us = begin.elapsed().as_secs_f64() * 1e6;
        assert_eq!(rows.len(), 3);
        for row in rows {
            demand(row["variant"] == "notified, asleep", "the variant", &row)?;
            check_row(&row, 2)?;
        }
        // Three rows of 20 messages of the library and 20 of the limit, each there and back.
        assert!(took_us > 3.0 * 2.0 * 20.0 * 2.0 * delay_us, "{took_us} us with {sleeping}");
    }
    Ok(())
}

#[test]
fn a_transport_that_is_asked_for() -> Result<()> {
    let shm = check(&case("write-lat", &["post", "post+wait"], &[8]), 2, &["--transport", "shm"]);
    shm.map(drop)?;
    let auto = alone(&["barrier", "-n", "2", "--transport", "auto", "--json"])?.args(FEW);
    let rows = objects(&auto.run()?.success()?)?;
    demand(rows[0]["transport"] == "shm", "the transport of one machine", &rows[0])
}

#[test]
fn what_a_peer_costs() -> Result<()> {
    let job = alone(&["init", "-n", "2", "--jobs", "1", "--no-cycles", "--peers", "--json"])?;
    let rows = objects(&job.run()?.success()?)?;
    let variants: Vec<&str> = rows.iter().filter_map(|row| row["variant"].as_str()).collect();
    assert!(variants.ends_with(&["each peer, not talked to", "each peer, talked to"]), "{rows:?}");
    for (row, goal) in rows[rows.len() - 2..].iter().zip([1u64 << 10, 64 << 10]) {
        let bytes = row["resident_bytes"].as_u64();
        // None of two more ranks costs a gigabyte.
        demand(bytes.is_some_and(|bytes| bytes < 1 << 30), "bytes", row)?;
        demand(row["limit"] == "goal" && row["limit_bytes"] == goal as f64, "the goal", row)?;
    }
    let one = objects(
        &launched(2, &["init", "--no-cycles", "--peers", "-n", "2", "--json"])?.run()?.success()?,
    )?;
    let names: Vec<&str> = one.iter().filter_map(|row| row["variant"].as_str()).collect();
    assert_eq!(names[1..3], ["private after init", "private, peers talked to"]);
    Ok(())
}

#[test]
fn limits_are_those_that_rows_stand_beside() -> Result<()> {
    let own = ["atomic add"];
    let shared =
        ["atomic add by both", "line hand-over", "data and flag", "yield switch", "futex wake"];
    let arguments = ["limits", "--sizes", "4K,64K", "--iterations", "20"];
    let names = |rows: &[Value]| -> Vec<String> {
        rows.iter().map(|row| row["variant"].as_str().unwrap_or_default().to_owned()).collect()
    };
    for ranks in [2, 4] {
        let rows = rows(ranks, &arguments)?;
        let sized = ["memcpy", "memcpy of dirty lines", "float add"];
        let expected = [&own[..], &shared[..], &sized[..], &sized[..]].concat();
        assert_eq!(names(&rows), expected);
        rows.iter().try_for_each(|row| check_row(row, ranks))?;
    }
    let rows = rows(1, &arguments)?;
    let sized = ["memcpy", "float add"];
    assert_eq!(names(&rows), [&own[..], &sized[..], &sized[..]].concat());
    rows.iter().try_for_each(|row| check_row(row, 1))
}

#[test]
fn starts_of_jobs() -> Result<()> {
    let job = alone(&["init", "-n", "3", "--jobs", "3", "--no-cycles", "--json"])?;
    let rows = objects(&job.run()?.success()?)?;
    let variants: Vec<&str> = rows.iter().filter_map(|row| row["variant"].as_str()).collect();
    let resident = ["resident after init", "... of it private", "... of it shared"];
    assert_eq!(variants, [&["gaspi_proc_init", "whole job"], &resident[..]].concat());
    check_row(&rows[0], 3)?;
    check_row(&rows[1], 3)?;
    demand(rows[0]["limit"] == "goal", "the goal", &rows[0])?;
    let bytes = |row: &Value| row["resident_bytes"].as_u64();
    // No program is smaller than a page, and none of 3 ranks needs a gigabyte.
    let all = bytes(&rows[2]).ok_or_else(|| Failed(format!("resident_bytes: {}", rows[2])))?;
    assert!((4096..1 << 30).contains(&all), "{all}");
    assert!(bytes(&rows[3]) < Some(all) && bytes(&rows[4]) < Some(all), "{rows:?}");

    let cycles = rows_of_cycles()?;
    assert_eq!(cycles, ["2000 x 64 KiB segment", "255 segments at once", "100000 x queue"]);
    Ok(())
}

fn rows_of_cycles() -> Result<Vec<String>> {
    let rows = rows(2, &["init"])?;
    let names = rows.iter().filter_map(|row| row["variant"].as_str());
    Ok(names.skip(1).take(3).map(str::to_owned).collect())
}

#[test]
fn the_whole_suite_in_one_job() -> Result<()> {
    let rows = rows(2, &["all", "--iterations", "1", "--goals"])?;
    let has = |test: &str| rows.iter().any(|row| row["test"] == test);
    let others = ["limits", "write-rate", "init", "allreduce", "broadcast", "alltoallv"];
    for test in PAIRED.iter().chain(&OF_ALL).map(|case| case.test).chain(others) {
        assert!(has(test), "{test}");
    }
    // What has a goal has a verdict.
    for (test, variant, size) in [
        ("write-notify-lat", "notified", Some(8)),
        ("write-notify-lat", "taken", Some(1 << 20)),
        ("notify-rate", "waitsome-test", None),
        ("write-lat", "post", Some(8)),
        ("write-lat", "post+wait", Some(8)),
        ("atomic-lat", "fetch_add", None),
        ("write-bw", "write", Some(64 << 10)),
        ("read-bw", "read", Some(16 << 20)),
        ("barrier", "barrier", None),
        ("allreduce-standard", "sum f64", Some(8)),
        ("write-rate", "threads", Some(8)),
        ("init", "gaspi_proc_init", None),
    ] {
        let row = rows.iter().find(|row| {
            row["test"] == test && row["variant"] == variant && row["size_bytes"].as_u64() == size
        });
        let row = row.ok_or_else(|| Failed(format!("{test} {variant} {size:?} is missing")))?;
        demand(row["goal"].is_f64() && row["goal_met"].is_boolean(), "a verdict", row)?;
        let (figure, goal) = (number(row, "of_limit")?, number(row, "goal")?);
        let is_met =
            if is_share(row) || test.ends_with("-bw") { figure >= goal } else { figure <= goal };
        demand(row["goal_met"] == is_met, "the verdict", row)?;
    }
    Ok(())
}

#[test]
fn sizes_as_a_series() -> Result<()> {
    let sizes = |arguments: &[&str]| -> Result<Vec<Value>> {
        let rows = rows(2, &[&["read-lat"], &FEW[..], arguments].concat())?;
        Ok(rows.iter().map(|row| row["size_bytes"].clone()).collect())
    };
    assert_eq!(sizes(&["-b", "8", "-e", "1K", "-f", "8"])?, [8, 64, 512]);
    assert_eq!(sizes(&["-b", "1K", "-e", "4K"])?, [1024, 2048, 4096]);
    assert_eq!(sizes(&["--sizes", "3,2K,1MiB"])?, [3, 2048, 1 << 20]);
    Ok(())
}

#[test]
fn it_starts_itself() -> Result<()> {
    for ranks in ["1", "2", "4"] {
        let job = alone(&["barrier", "-n", ranks, "--json", "--iterations", "20"])?;
        let rows = objects(&job.run()?.success()?)?;
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0]["ranks"].to_string(), ranks);
    }
    // Without -n it is a job of one rank.
    let rows = objects(&alone(&["barrier", "--json", "--iterations", "20"])?.run()?.success()?)?;
    assert_eq!(rows[0]["ranks"], 1);
    Ok(())
}

#[test]
fn mistakes_are_told() -> Result<()> {
    for (arguments, words) in [
        (&["write-lat", "--sizes", "8X"][..], "use K, M or G"),
        (&["write-lat", "--sizes", "0"], "at least 1 byte"),
        (&["write-lat", "--sizes", "2G"], "at most 1G"),
        (&["write-lat", "--sizes", "8", "-b", "8"], "cannot be used with"),
        (&["write-lat", "-b", "1K", "-e", "8"], "which is less"),
        (&["write-lat", "-f", "1"], "from 2 on"),
        (&["barrier", "--sizes", "8"], "unexpected argument"),
        (&["barrier", "--iterations", "0"], "1 to 1000000000"),
        (&["barrier", "-n", "0"], "1..=65535"),
        (&["wirte-lat"], "write-lat"),
        (&["write-lat"], "start it with -n 2"),
        (&["write-lat", "-n", "2", "--pairs", "2"], "start it with -n 4"),
        (&["allreduce-standard", "--sizes", "12"], "multiples of 8 bytes"),
        (&["passive-lat", "-n", "2", "--sizes", "1M"], "at most 65535"),
        (&["barrier", "--transport", "udp"], "possible values: auto, shm, tcp"),
        (&["write-bw", "-n", "2", "--queues", "2"], "--both-ways"),
        (&["write-bw", "-n", "2", "--both-ways", "--queues", "9"], "1..=8"),
        (&["write-notify-lat", "-n", "2", "--sleeping=0"], "1..=1000000"),
        (&["init", "--peers"], "--ranks"),
        (&["write-rate", "-n", "2", "--cold"], "leave --cold out"),
        (&["write-rate", "-n", "2", "--threads", "1000"], "need a queue each"),
    ] {
        let outcome = alone(arguments)?.run()?.code(2)?.says(words)?;
        assert!(outcome.stdout.is_empty(), "{arguments:?}: {}", outcome.stdout);
    }
    launched(2, &["barrier", "-n", "3"])?.run()?.code(2)?.says("job of 2")?;
    // All ranks have the same command line: one of them tells.
    let outcome = launched(2, &["write-lat", "--pairs", "2"])?.run()?.code(2)?;
    assert_eq!(outcome.stderr.matches("start it with -n 4").count(), 1, "{}", outcome.stderr);
    Ok(())
}

#[test]
fn a_library_that_is_not_there() -> Result<()> {
    let missing = alone(&["barrier"])?.env("GASPI_LIBRARY", "/nowhere/libgaspi.so.1");
    missing.run()?.code(2)?.says("/nowhere/libgaspi.so.1")?.says("GASPI_LIBRARY")?;
    let foreign = alone(&["barrier"])?.env("GASPI_LIBRARY", "libc.so.6");
    foreign.run()?.code(2)?.says("libc.so.6 is not a library to measure")?;
    Ok(())
}

#[test]
fn a_rank_that_dies_ends_the_run() -> Result<()> {
    for test in ["limits", "write-lat", "write-notify-lat", "passive-lat"] {
        let sizes = ["--sizes", "8", "--iterations", "1000000000"];
        let job = launched(3, &[test])?.args(sizes).limit(Duration::from_secs(30)).start()?;
        let (doomed, idle) = (job.rank(1)?, job.rank(2)?);
        until_it_waits(&idle)?;
        doomed.signal(libc::SIGKILL)?;
        let outcome = job.wait()?;
        assert!(!outcome.status.success() && outcome.left.is_empty(), "{outcome:?}");
        for rank in [0, 2] {
            let begin = format!("gaspi-bench {test}: rank {rank}: ");
            let said = outcome.stderr.lines().find(|line| line.starts_with(&begin));
            let said = said.ok_or_else(|| outcome.failure(&format!("rank {rank} says nothing")))?;
            assert!(said.contains("died"), "{said}");
        }
        outcome.says("rank 1 has died")?;
    }
    Ok(())
}

/// Until a rank that belongs to no pair sleeps in the memory of gaspi-bench, with that of a row
/// beside it: the pair measures.
fn until_it_waits(rank: &Process) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", rank.pid))?;
        let call = std::fs::read_to_string(format!("/proc/{}/syscall", rank.pid))?;
        // Number, then arguments: the first of futex is the address.
        let place = call.split_whitespace().nth(1).and_then(hexadecimal);
        let areas: Vec<(u64, u64)> = maps
            .lines()
            .filter(|line| line.contains("/memfd:gaspi-bench"))
            .filter_map(|line| line.split_whitespace().next()?.split_once('-'))
            .filter_map(|(from, to)| Some((hexadecimal(from)?, hexadecimal(to)?)))
            .collect();
        let is_inside = |place| areas.iter().any(|(from, to)| (*from..*to).contains(&place));
        if areas.len() == 2 && place.is_some_and(is_inside) {
            return Ok(());
        }
        std::thread::yield_now();
    }
    Err(Failed("it does not begin to measure".into()))
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}
