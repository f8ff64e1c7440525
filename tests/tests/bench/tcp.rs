//! Rows, limits and goals over TCP.

use super::*;

#[test]
fn rows_over_tcp() -> Result<()> {
    for case in &PAIRED_TCP {
        for row in check(case, 2, &[&TCP[..], &["--check"]].concat())? {
            let limit = row["limit"].as_str().unwrap_or_default();
            let own = row["variant"] == "waitsome-test" || row["variant"] == "reset";
            demand(limit.starts_with("raw ") != own, "a limit over TCP", &row)?;
            demand(row["of_limit"].is_f64(), "a pair has a limit", &row)?;
        }
    }
    for case in &OF_ALL {
        for ranks in [2, 3] {
            for row in check(case, ranks, &TCP)? {
                let limit = row["limit"].as_str().unwrap_or_default();
                demand(limit.contains("raw one way"), "a limit over TCP", &row)?;
                demand((ranks == 3) == limit.starts_with("2 x "), "steps of the limit", &row)?;
            }
        }
    }
    Ok(())
}

#[test]
fn pairs_threads_and_sleepers_over_tcp() -> Result<()> {
    check(&case("write-bw", &["write"], &[8, 65536]), 4, &[&TCP[..], &["--pairs", "2"]].concat())?;
    let threads = case("write-rate", &["1 thread", "threads"], &[8, 1024]);
    check(&threads, 2, &[&TCP[..], &["--threads", "2"]].concat())?;
    let cold = [&TCP[..], &["--check", "--cold"]].concat();
    check(&case("write-bw", &["write"], &[65536]), 2, &cold)?;
    let both = [&["write-bw", "--both-ways", "--sizes", "8,64K,3M", "--check"], &FEW[..], &TCP];
    for row in rows(2, &both.concat())? {
        demand(row["limit"] == "raw streams both ways", "the limit", &row)?;
        check_row_over("tcp", 2.0, &row, 2)?;
    }
    let asleep = [&["write-notify-lat", "--sleeping", "--sizes", "8,4096"], &FEW[..], &TCP];
    for row in rows(2, &asleep.concat())? {
        demand(row["limit"] == "raw one way, receiver asleep", "the limit", &row)?;
        check_row_over("tcp", 1.0, &row, 2)?;
    }
    Ok(())
}

#[test]
fn limits_over_tcp() -> Result<()> {
    let messages = [
        "raw one way",
        "raw one way, blocking",
        "raw round trip",
        "raw round trip, target asleep",
        "raw send()",
        "raw one way, receiver asleep",
    ];
    let streams = ["raw stream", "raw stream, sendfile", "raw streams both ways"];
    let arguments = [&["limits", "--sizes", "1,4K,3M"], &FEW[..], &TCP].concat();
    let rows = rows(2, &arguments)?;
    let names: Vec<&str> = rows.iter().filter_map(|row| row["variant"].as_str()).collect();
    assert_eq!(names, [&messages[..], &streams, &streams, &streams].concat());
    rows.iter().try_for_each(|row| {
        let both = row["variant"] == "raw streams both ways";
        check_row_over("tcp", if both { 2.0 } else { 1.0 }, row, 2)
    })
}

#[test]
fn goals_over_tcp() -> Result<()> {
    let goal = |arguments: &[&str], variant: &str, goal: f64| -> Result<()> {
        let all = [arguments, &FEW[..], &TCP, &["--goals", "--json"]].concat();
        let rows = objects(&launched(2, &all)?.run()?.success()?)?;
        let row = rows.iter().find(|row| row["variant"] == variant);
        let row = row.ok_or_else(|| Failed(format!("{variant} is missing: {rows:?}")))?;
        demand(row["goal"] == goal && row["goal_met"].is_boolean(), "a verdict", row)?;
        let is_met = match row["rate_million_s"].as_f64() {
            Some(rate) if variant == "notify" || variant == "1 thread" => rate >= goal,
            _ if goal < 1.0 => number(row, "of_limit")? >= goal,
            _ => number(row, "of_limit")? <= goal,
        };
        demand(row["goal_met"] == is_met, "the verdict", row)
    };
    goal(&["write-notify-lat", "--sizes", "8"], "notified", 1.25)?;
    goal(&["write-notify-lat", "--sizes", "8", "--sleeping"], "notified, asleep", 1.3)?;
    goal(&["write-bw", "--sizes", "256K"], "write", 0.9)?;
    goal(&["write-bw", "--sizes", "256K", "--both-ways"], "both ways", 0.9)?;
    goal(&["write-rate", "--sizes", "8"], "1 thread", 2.0)?;
    goal(&["notify-rate"], "notify", 2.0)?;
    goal(&["atomic-lat"], "fetch_add", 1.3)?;
    let job = ["init", "-n", "2", "--jobs", "1", "--no-cycles", "--json", "--transport", "tcp"];
    let rows = objects(&alone(&job)?.run()?.success()?)?;
    demand(rows[0]["limit_us"] == 60e3 && rows[0]["transport"] == "tcp", "the goal", &rows[0])
}

#[test]
fn verbs_without_a_device_is_an_error_with_its_reason() -> Result<()> {
    let arguments = [&["write-lat", "--sizes", "8", "--transport", "verbs"], &FEW[..]].concat();
    let job = launched(2, &arguments)?.env("GASPI_IBVERBS_LIB", "/nowhere/libibverbs.so.1");
    let outcome = job.run()?;
    if outcome.status.success() {
        return Err(outcome.failure("there is no device"));
    }
    outcome.says("GASPI_TRANSPORT is verbs, but /nowhere/libibverbs.so.1 cannot be loaded")?;
    Ok(())
}
