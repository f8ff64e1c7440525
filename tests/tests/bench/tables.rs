//! How tables look: columns, widths, and the header.

use super::*;

/// Where each word group of a line begins and ends; two blanks divide groups.
fn cells(line: &str) -> Vec<(usize, usize, &str)> {
    let mut cells = Vec::new();
    let mut from = 0;
    for part in line.split("  ") {
        let text = part.trim_start();
        if !text.is_empty() {
            let begin = from + part.len() - text.len();
            cells.push((begin, begin + text.len(), text));
        }
        from += part.len() + 2;
    }
    cells
}

#[test]
fn tables_align() -> Result<()> {
    let sized = ["--sizes", "1,8,64K"];
    let heads = [
        ("limits", "size|p50 us|p99 us|min us|GB/s|errors"),
        ("write-lat", "size|p50 us|p99 us|min us|GB/s|limit us|of limit|errors|the limit"),
        ("write-bw", "size|p50 us|p99 us|min us|GB/s|limit GB/s|of limit|errors|the limit"),
        (
            "notify-rate",
            "size|p50 us|p99 us|min us|GB/s|million/s|limit us|of limit|errors|the limit",
        ),
        ("barrier", "size|p50 us|p99 us|min us|GB/s|limit us|of limit|errors|the limit"),
    ];
    for (test, head) in heads {
        let mut job = launched(2, &[test])?.args(FEW);
        if !matches!(test, "notify-rate" | "barrier") {
            job = job.args(sized);
        }
        let outcome = job.run()?.success()?;
        let lines: Vec<&str> =
            outcome.stdout.lines().skip_while(|line| line.starts_with('#')).collect();
        let ["", header, rows @ ..] = &lines[..] else {
            return Err(outcome.failure("a table was to follow the header"));
        };
        let header = cells(header);
        let names: Vec<&str> = header.iter().map(|cell| cell.2).collect();
        assert_eq!(names.join("|"), format!("test|variant|{head}"), "{test}");
        assert!(!rows.is_empty(), "{test}");
        for row in rows {
            let row = cells(row);
            assert_eq!(row.len(), header.len(), "{test}: {row:?}");
            for (cell, head) in row.iter().zip(&header) {
                let aligned = if matches!(head.2, "test" | "variant" | "the limit") {
                    cell.0 == head.0
                } else {
                    cell.1 == head.1
                };
                assert!(aligned, "{test}: {cell:?} does not stand under {head:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn more_columns_when_asked() -> Result<()> {
    let arguments = ["write-lat", "--sizes", "8", "--percentiles", "--goals"];
    let outcome = launched(2, &arguments)?.args(FEW).run()?.success()?;
    let header = outcome.stdout.lines().find(|line| line.starts_with("test")).unwrap_or_default();
    for name in ["p50 us", "p90 us", "p99 us", "p99.9 us", "min us", "goal", "met"] {
        assert!(cells(header).iter().any(|cell| cell.2 == name), "{name}: {header}");
    }
    let rows = rows(2, &["barrier", "--percentiles", "--iterations", "20"])?;
    assert!(number(&rows[0], "p90_us")? <= number(&rows[0], "p999_us")?, "{rows:?}");
    Ok(())
}

#[test]
fn the_header_says_where_figures_come_from() -> Result<()> {
    let outcome = alone(&["barrier", "-n", "2", "--bind", "none"])?.args(FEW).run()?.success()?;
    let header: Vec<&str> =
        outcome.stdout.lines().take_while(|line| line.starts_with('#')).collect();
    for words in ["# gaspi-bench 0.", "libgaspi.so", "usable core", "rank 0 not bound"] {
        assert!(header.iter().any(|line| line.contains(words)), "{words}: {header:?}");
    }
    for words in ["# machine ", "2, transport shm", "# memory    warm"] {
        assert!(header.iter().any(|line| line.contains(words)), "{words}: {header:?}");
    }
    Ok(())
}
