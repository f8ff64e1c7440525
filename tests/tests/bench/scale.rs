//! gaspi-bench scale.

use super::{alone, demand, number, objects};
use gaspi_tests::Result;

/// Figures of a number of ranks, all of them above 0.
const FIGURES: [&str; 13] = [
    "proc_init_us",
    "segment_create_us",
    "barrier_us",
    "allreduce_us",
    "coll_first_us",
    "coll_next_us",
    "proc_term_us",
    "cpu_us",
    "descriptors",
    "descriptors_later",
    "private_bytes",
    "whole_job_us",
    "death_known_us",
];

#[test]
fn each_number_of_ranks_has_all_figures() -> Result<()> {
    for transport in ["auto", "tcp"] {
        let arguments = ["scale", "-n", "2,5", "--jobs", "2", "--transport", transport, "--json"];
        let columns = objects(&alone(&arguments)?.run()?.success()?)?;
        assert_eq!(columns.len(), 2, "{columns:?}");
        for (column, ranks) in columns.iter().zip([2, 5]) {
            demand(column["ranks"] == ranks, "its ranks", column)?;
            demand(column["transport"] == transport, "its transport", column)?;
            for figure in FIGURES {
                demand(number(column, figure)? > 0.0, figure, column)?;
            }
            let steps = number(column, "proc_init_us")? + number(column, "segment_create_us")?;
            demand(number(column, "whole_job_us")? > steps, "longer than its parts", column)?;
        }
    }
    Ok(())
}

#[test]
fn the_table_has_a_column_for_each_number() -> Result<()> {
    let outcome = alone(&["scale", "-n", "2,3", "--jobs", "1"])?.run()?.success()?;
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    let head = lines.iter().position(|line| line.starts_with("what ")).expect("a head");
    assert!(lines[head].ends_with("2 ranks        3 ranks"), "{}", lines[head]);
    let rows = &lines[head + 1..];
    assert_eq!(rows.len(), FIGURES.len(), "{}", outcome.stdout);
    for (row, unit) in [(0, "s"), (7, "s"), (10, "MiB"), (12, "s")] {
        assert!(rows[row].ends_with(unit), "{}", rows[row]);
    }
    let missing = rows.iter().find(|row| row.split_whitespace().any(|word| word == "-"));
    assert_eq!(missing, None);
    Ok(())
}

#[test]
fn it_is_no_rank_of_a_job() -> Result<()> {
    let outcome = super::launched(2, &["scale"])?.run()?.code(2)?;
    assert_eq!(outcome.stderr.matches("run it without a launcher").count(), 1);
    alone(&["scale", "-n", "2,1"])?.run()?.code(2)?.says("2..=65535")?;
    let missing = alone(&["scale", "-n", "2"])?.env("GASPI_LIBRARY", "/nowhere/libgaspi.so.1");
    missing.run()?.code(1)?.says("a job of 2 ranks failed")?.says("/nowhere/libgaspi.so.1")?;
    Ok(())
}
