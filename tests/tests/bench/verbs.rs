//! gaspi-bench by verbs: over devices that tests/mock-card plays, one for each process.

use super::*;

/// The rows of a run of two ranks.
fn rows_by_verbs(arguments: &[&str]) -> Result<Vec<Value>> {
    let job = launched(2, arguments)?.args(FEW).arg("--json").over_devices()?;
    objects(&job.run()?.success()?)
}

fn variants(rows: &[Value]) -> Vec<&str> {
    rows.iter().filter_map(|row| row["variant"].as_str()).collect()
}

#[test]
fn limits_by_verbs() -> Result<()> {
    let requests = [
        "raw write, memory polled",
        "raw message",
        "raw write with immediate",
        "raw write and completion",
        "raw write, read behind",
        "raw read",
        "raw message there and back",
        "raw messages that cross",
        "raw post",
        "raw message, receiver asleep",
    ];
    let transfers = ["raw writes", "raw reads", "raw writes both ways"];
    // After each batch all bytes are compared that raw requests have moved.
    let rows = rows_by_verbs(&["limits", "--sizes", "1,4K,3M", "--check"])?;
    assert_eq!(variants(&rows), [&requests[..], &transfers, &transfers, &transfers].concat());
    rows.iter().try_for_each(|row| {
        let both = row["variant"] == "raw writes both ways";
        check_row_over("verbs", if both { 2.0 } else { 1.0 }, row, 2)
    })
}

/// Arguments, and what stands beside what.
type Case = (&'static [&'static str], &'static [(&'static str, &'static str)]);

#[test]
fn rows_stand_beside_raw_verbs() -> Result<()> {
    let cases: [Case; 7] = [
        (
            &["write-lat", "--sizes", "8"],
            &[
                ("post", "raw post"),
                ("post+wait", "raw write and completion"),
                ("memory polled", "raw write, memory polled"),
            ],
        ),
        (
            &["write-lat", "--sizes", "1"],
            &[("post", "raw post"), ("post+wait", "raw write and completion")],
        ),
        (&["read-lat", "--sizes", "8"], &[("read+wait", "raw read")]),
        (
            &["write-notify-lat", "--sizes", "8"],
            &[
                ("notified", "raw message"),
                ("notified, beside a write", "raw write, memory polled"),
            ],
        ),
        (
            &["write-notify-lat", "--sizes", "64K"],
            &[
                ("notified", "raw write with immediate"),
                ("taken", "raw write with immediate, data read"),
            ],
        ),
        (&["write-bw", "--sizes", "64K"], &[("write", "raw writes")]),
        (&["read-bw", "--sizes", "64K"], &[("read", "raw reads")]),
    ];
    for (arguments, expected) in cases {
        let rows = rows_by_verbs(&[arguments, &["--check"]].concat())?;
        let found: Vec<(&str, &str)> = rows
            .iter()
            .map(|row| {
                let text = |key: &str| row[key].as_str().unwrap_or_default();
                (text("variant"), text("limit"))
            })
            .collect();
        assert_eq!(found, expected, "{arguments:?}");
        rows.iter().try_for_each(|row| check_row_over("verbs", 1.0, row, 2))?;
    }
    Ok(())
}

#[test]
fn goals_by_verbs() -> Result<()> {
    for (arguments, variant, goal) in [
        (&["write-lat", "--sizes", "8"][..], "memory polled", 1.1),
        (&["write-lat", "--sizes", "8"], "post+wait", 1.1),
        (&["read-lat", "--sizes", "8"], "read+wait", 1.1),
        (&["write-notify-lat", "--sizes", "8"], "notified", 1.15),
        (&["write-notify-lat", "--sizes", "8"], "notified, beside a write", 1.25),
        (&["write-bw", "--sizes", "64K"], "write", 0.95),
        (&["read-bw", "--sizes", "64K"], "read", 0.95),
        (&["atomic-lat"], "fetch_add", 1.25),
        (&["barrier"], "barrier", 1.3),
    ] {
        let rows = rows_by_verbs(&[arguments, &["--goals"]].concat())?;
        let row = rows.iter().find(|row| row["variant"] == variant);
        let row = row.ok_or_else(|| Failed(format!("{variant} is missing: {rows:?}")))?;
        demand(row["goal"] == goal && row["goal_met"].is_boolean(), "a verdict", row)?;
    }
    Ok(())
}
