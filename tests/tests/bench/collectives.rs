//! Rows of the collective operations that move data: what nccl-tests calls size, count, algbw and
//! busbw, and results that are right for every type, operation, place and transport.

use crate::{FEW, TCP, alone, check_row_over, demand, launched, number, objects, rows};
use gaspi_tests::Result;
use serde_json::Value;

/// Operations with what busbw is in terms of algbw, for some ranks; whether they combine; and
/// whether their larger buffer has a block for each rank.
struct Operation {
    name: &'static str,
    bus: fn(f64) -> f64,
    reduces: bool,
    blocks: bool,
}

const fn operation(
    name: &'static str,
    bus: fn(f64) -> f64,
    reduces: bool,
    blocks: bool,
) -> Operation {
    Operation { name, bus, reduces, blocks }
}

const ALL: [Operation; 10] = [
    operation("allreduce", |n| 2.0 * (n - 1.0) / n, true, false),
    operation("reduce", |_| 1.0, true, false),
    operation("broadcast", |_| 1.0, false, false),
    operation("reduce-scatter", |n| (n - 1.0) / n, true, true),
    operation("allgather", |n| (n - 1.0) / n, false, true),
    operation("allgatherv", |n| (n - 1.0) / n, false, true),
    operation("gather", |n| (n - 1.0) / n, false, true),
    operation("scatter", |n| (n - 1.0) / n, false, true),
    operation("alltoall", |n| (n - 1.0) / n, false, true),
    operation("alltoallv", |n| (n - 1.0) / n, false, true),
];

/// Two sizes: one that fits into lines, and one of several pieces that no power of 2 divides.
const SIZES: [&str; 2] = ["--sizes", "24,120K"];

fn measured(
    operation: &Operation,
    ranks: u32,
    transport: &str,
    more: &[&str],
) -> Result<Vec<Value>> {
    let arguments = [&[operation.name], &SIZES[..], &FEW, &["--check"], more].concat();
    let rows = rows(ranks, &arguments)?;
    assert_eq!(rows.len(), 2, "{arguments:?}: {rows:?}");
    for row in &rows {
        check_row_over(transport, 1.0, row, ranks)?;
        demand(row["test"] == operation.name, "the name", row)?;
        demand(row["op"].is_string() == operation.reduces, "an operation", row)?;
        let ratio = number(row, "bus_bandwidth_gb_s")?
            - number(row, "bandwidth_gb_s")? * (operation.bus)(f64::from(ranks));
        demand(ratio.abs() < 1e-9, "busbw", row)?;
    }
    Ok(rows)
}

#[test]
fn sizes_counts_and_bandwidths() -> Result<()> {
    for operation in &ALL {
        for ranks in [1, 2, 4] {
            for row in measured(operation, ranks, "shm", &[])? {
                let blocks = if operation.blocks { u64::from(ranks) } else { 1 };
                // Blocks of two lengths are as long together only for even numbers of ranks.
                let uneven = operation.name.ends_with('v') && ranks % 2 == 1;
                let whole = row["count"].as_u64().map(|count| 4 * count * blocks);
                demand(uneven || row["size_bytes"].as_u64() == whole, "size and count", &row)?;
                demand(row["type"] == "f32" && row["in_place"] == false, "defaults", &row)?;
                demand(row["buffers"] == "segment" && row["algorithm"].is_null(), "more", &row)?;
            }
        }
    }
    Ok(())
}

#[test]
fn places_memories_roots_and_transports() -> Result<()> {
    for operation in &ALL {
        for more in [
            &["--in-place"][..],
            &["--memory", "private", "--cold"],
            &["--in-place", "--memory", "private", "--root", "2"],
        ] {
            for row in measured(operation, 3, "shm", more)? {
                demand(row["in_place"] == more.contains(&"--in-place"), "place", &row)?;
                demand((row["buffers"] == "private") == more.contains(&"private"), "memory", &row)?;
            }
        }
        measured(operation, 3, "tcp", &[&TCP[..], &["--in-place"]].concat())?;
    }
    Ok(())
}

#[test]
fn types_and_operations() -> Result<()> {
    let types = ["i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f16", "bf16", "f32", "f64"];
    let ops = ["sum", "product", "min", "max", "average", "and", "or", "xor"];
    for (index, ty) in types.iter().enumerate() {
        // Each type with three operations, so that each operation meets integers and, of those that
        // have it, floats.
        for op in (0..3).map(|step| ops[(index + step * 3) % ops.len()]) {
            if ty.contains('f') && matches!(op, "and" | "or" | "xor") {
                continue;
            }
            let rows = measured(&ALL[0], 3, "shm", &["-d", ty, "-o", op])?;
            let variant = format!("{op} {ty}");
            let named = |row: &Value| row["type"] == *ty && row["op"] == op;
            assert!(rows.iter().all(|row| named(row) && row["variant"] == variant), "{rows:?}");
        }
    }
    measured(&ALL[4], 2, "shm", &["-d", "half"])?;
    measured(&ALL[3], 2, "shm", &["-d", "int8", "-o", "avg"]).map(drop)
}

#[test]
fn algorithms_by_name() -> Result<()> {
    for row in measured(&ALL[0], 2, "shm", &["--algorithm", "ring"])? {
        demand(row["algorithm"] == "ring", "the algorithm", &row)?;
    }
    let unknown = launched(2, &["allreduce", "--algorithm", "magic"])?.args(FEW);
    unknown.run()?.code(1)?.says("no algorithm \"magic\"").map(drop)
}

#[test]
fn the_choice_beside_all_algorithms() -> Result<()> {
    for (transport, more) in [("shm", &[][..]), ("tcp", &TCP[..])] {
        let arguments = [
            &["allreduce", "--algorithm", "all", "--sizes", "120K", "--iterations", "100"][..],
            &["--check", "--goals"],
            more,
        ]
        .concat();
        let rows = rows(3, &arguments)?;
        let (choice, others) = rows.split_first().expect("at least one row");
        demand(choice["algorithm"].is_null(), "the choice comes first", choice)?;
        let named = |name: &str| others.iter().find(|row| row["algorithm"] == name);
        // What needs one node serves there only.
        let single_copy = named("single_copy").is_some();
        demand(single_copy == (transport == "shm"), "the algorithms that serve", choice)?;
        demand(named("ring").is_some() && others.len() > 4, "all algorithms", choice)?;
        let times = others.iter().map(|row| number(row, "p50_us")).collect::<Result<Vec<f64>>>()?;
        let best = times.iter().copied().fold(f64::INFINITY, f64::min);
        demand(choice["limit_us"] == best, "the best of them", choice)?;
        let fastest = choice["limit"].as_str().and_then(named);
        demand(fastest.is_some_and(|row| row["p50_us"] == best), "its name", choice)?;
        // Of few batches nothing is known.
        let noise = choice["noise"].as_f64().unwrap_or_default();
        let allowed = 1.1f64.max(1.0 + noise);
        demand(choice["goal"] == allowed, "a tenth, or the noise", choice)?;
        let ratio = number(choice, "p50_us")? / best;
        demand((number(choice, "of_limit")? - ratio).abs() < 1e-9, "the ratio", choice)?;
        for row in &rows {
            demand(row["errors"] == 0 && row["transport"] == transport, "a row", row)?;
        }
    }
    Ok(())
}

#[test]
fn bus_bandwidth_beside_writes_to_the_next_rank() -> Result<()> {
    let arguments = ["allreduce", "--algorithm", "ring", "--point-to-point", "--goals"];
    for (size, goal) in [("120K", false), ("4M", true)] {
        let few = [&arguments[..], &FEW, &["--sizes", size]].concat();
        for row in rows(3, &few)? {
            let share = number(&row, "limit_us")? / number(&row, "p50_us")?;
            demand((number(&row, "of_limit")? - share).abs() < 1e-9, "the share", &row)?;
            demand(row["goal"].is_null() != goal, "a goal from 4 MiB on", &row)?;
        }
    }
    for (more, words) in [
        (&["-n", "2", "--algorithm", "all", "--point-to-point"][..], "ask for one"),
        (&["-n", "1", "--point-to-point"], "start it with -n 2"),
    ] {
        alone(&[&["allreduce"], more].concat())?.run()?.code(2)?.says(words)?;
    }
    Ok(())
}

#[test]
fn a_table_as_nccl_tests_has_it() -> Result<()> {
    let job = alone(&["allreduce", "-n", "2", "--sizes", "8,64K", "-d", "bf16", "-o", "max"])?;
    let outcome = job.args(FEW).run()?.success()?;
    let lines: Vec<&str> = outcome.stdout.lines().filter(|line| line.contains("  ")).collect();
    let table: Vec<Vec<&str>> =
        lines.iter().map(|line| line.split_whitespace().collect()).collect();
    let head = "test size count type op algorithm place time us algbw busbw errors";
    let head = table.iter().position(|words| words.join(" ") == head);
    let Some(head) = head else { return Err(outcome.failure("no head")) };
    assert_eq!(table[head + 1][..7], ["allreduce", "8", "4", "bf16", "max", "-", "out"]);
    assert_eq!(table[head + 2][..7], ["allreduce", "65536", "32768", "bf16", "max", "-", "out"]);
    assert_eq!(lines[head].len(), lines[head + 1].len());
    assert_eq!(lines[head].len(), lines[head + 2].len());
    Ok(())
}

#[test]
fn mistakes_are_told_before_a_job_starts() -> Result<()> {
    for (arguments, words) in [
        (&["allreduce", "-n", "2", "-o", "xor"][..], "f32 has no bits to combine"),
        (&["broadcast", "-n", "2", "-o", "sum"], "unexpected argument"),
        (&["broadcast", "-n", "2", "--root", "2"], "the job has 2 ranks"),
        (&["gather", "-n", "2", "-d", "f64", "-s", "12"], "multiples of that"),
        (&["scatter", "-n", "2", "-d", "f8"], "possible values: i8"),
        (&["alltoall", "-n", "2", "--memory", "device"], "possible values: segment, private"),
    ] {
        alone(arguments)?.run()?.code(2)?.says(words)?;
    }
    let alias = alone(&["reduce_scatter", "-n", "2", "-s", "8", "--json"])?.args(FEW);
    assert_eq!(objects(&alias.run()?.success()?)?[0]["test"], "reduce-scatter");
    Ok(())
}
