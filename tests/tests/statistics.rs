//! What ranks tell at their end about what they did.

use std::path::Path;

use gaspi_tests::{Job, Outcome, Program, Result};

/// A C program that writes to other ranks.
fn job(ranks: u32, directory: &Path) -> Result<Job> {
    let all = Program::all("tests/c", &["c"])?;
    let program = all.iter().find(|program| program.name == "onesided").expect("onesided.c");
    Job::launched(ranks, &program.compiled(directory)?)
}

fn of_rank(outcome: &Outcome, rank: u16) -> Vec<&str> {
    let prefix = format!("[{rank} ");
    outcome.stderr.lines().filter(|line| line.starts_with(&prefix)).collect()
}

/// The number behind the name of a counter.
fn value(lines: &[&str], name: &str) -> u64 {
    let mut words = lines.iter().map(|line| line.split_whitespace().skip(2));
    let line = words.find_map(|mut words| (words.next() == Some(name)).then(|| words.next()));
    line.flatten().and_then(|value| value.parse().ok()).unwrap_or(0)
}

#[test]
fn each_rank_tells_what_it_did_when_asked() -> Result<()> {
    let directory = tempfile::tempdir().expect("directory");
    let outcome = job(3, directory.path())?.env("GASPI_STATISTICS", "1").run()?.success()?;
    for rank in 0..3 {
        let lines = of_rank(&outcome, rank);
        let head = format!("statistics of rank {rank} of 3");
        assert_eq!(lines.iter().filter(|line| line.ends_with(&head)).count(), 1, "{lines:?}");
        let written = value(&lines, "BytesWritten");
        assert!(written > 0, "{lines:?}");
        let by_transport = value(&lines, "BytesWrittenShm") + value(&lines, "BytesWrittenSelf");
        assert_eq!(written, by_transport, "{lines:?}");
        // The table of ranks: its columns are as wide in the head as below.
        let at = lines.iter().position(|line| line.contains(" transport ")).expect("a table");
        let columns: Vec<&str> = lines[at].split_whitespace().skip(2).collect();
        assert_eq!(&columns[..3], ["rank", "transport", "BytesWritten"]);
        let rows = &lines[at + 1..];
        assert!(!rows.is_empty(), "{lines:?}");
        let mut sum = 0;
        for row in rows {
            assert_eq!(row.len(), lines[at].len(), "{lines:?}");
            sum += row.split_whitespace().nth(4).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
        assert_eq!(sum, written, "{lines:?}");
    }
    Ok(())
}

#[test]
fn nobody_tells_unasked() -> Result<()> {
    let directory = tempfile::tempdir().expect("directory");
    for value in [None, Some("0")] {
        let mut job = job(2, directory.path())?;
        if let Some(value) = value {
            job = job.env("GASPI_STATISTICS", value);
        }
        let outcome = job.run()?.success()?;
        assert!(!outcome.stderr.contains("statistics"), "{}", outcome.stderr);
    }
    Ok(())
}
