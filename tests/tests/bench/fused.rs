//! gaspi-bench fusion.

use super::{FEW, alone, demand, number, rows};
use gaspi_tests::Result;

const LENET: [&str; 3] = ["fusion", "--tensors", "lenet"];
/// Bytes of its tensors.
const LENET_BYTES: u64 = 4 * (150 + 6 + 2400 + 16 + 48_000 + 120 + 10_080 + 84 + 840 + 10);

#[test]
fn a_step_stands_beside_one_allreduce() -> Result<()> {
    for (ranks, order, transport) in [
        (1, "forward", "auto"),
        (2, "reverse", "auto"),
        (3, "random", "auto"),
        (2, "random", "tcp"),
    ] {
        let options = ["--order", order, "--transport", transport, "--check"];
        let rows = rows(ranks, &[&LENET[..], &FEW, &options].concat())?;
        let variants: Vec<_> = rows.iter().map(|row| row["variant"].as_str()).collect();
        let expected = [
            "set-up",
            "in place",
            "private, lent",
            "CPU, in place",
            "CPU at rest",
            "memory touched",
        ];
        assert_eq!(variants, expected.map(Some), "{ranks} ranks, {order}, {transport}");
        let (memory, rows) = rows.split_last().expect("rows");
        let touched = number(memory, "resident_bytes")?;
        demand(touched >= LENET_BYTES as f64, "memory of all tensors", memory)?;
        for row in rows {
            demand(row["errors"] == 0, "no error", row)?;
            let least = if row["variant"] == "CPU at rest" { 0.0 } else { f64::MIN_POSITIVE };
            demand(number(row, "p50_us")? >= least, "a time", row)?;
        }
        for row in &rows[1..4] {
            demand(row["size_bytes"] == LENET_BYTES, "the bytes of all tensors", row)?;
            demand(number(row, "of_limit")? > 0.0, "a limit", row)?;
        }
        for row in &rows[1..3] {
            demand(number(row, "messages")? >= 1.0, "messages", row)?;
            // What goes through sockets is put where it belongs, but for what has come before a
            // rank was ready. In a node all is copied into stages, with what lies between tensors.
            let most = if transport == "tcp" { 0.5 } else { 1.01 };
            demand(number(row, "copies_per_byte")? <= most, "few copies", row)?;
        }
    }
    Ok(())
}

#[test]
fn what_is_left_behind_the_last_submit_is_exposed() -> Result<()> {
    let options = ["--compute", "2000", "--threshold", "0"];
    let rows = rows(2, &[&LENET[..], &FEW, &options].concat())?;
    let of = |variant: &str| rows.iter().find(|row| row["variant"] == variant);
    let (whole, exposed) = (of("with computing").expect("a row"), of("exposed").expect("a row"));
    let cpu = of("CPU, with computing").expect("a row");
    demand(number(cpu, "p50_us")? >= 1900.0, "the time of computing", cpu)?;
    demand(number(whole, "p50_us")? >= 2000.0, "as long as computing", whole)?;
    demand(number(exposed, "p50_us")? < number(whole, "p50_us")?, "a part", exposed)
}

#[test]
fn values_may_travel_in_16_bits_and_sums_may_be_stable() -> Result<()> {
    for (options, variant) in [
        (&["--wire", "bf16", "--check"][..], "wire bf16"),
        (&["--wire", "f16", "--check"], "wire f16"),
        (&["--stable", "--check"], "stable"),
    ] {
        let rows = rows(2, &[&LENET[..], &FEW, options].concat())?;
        let row = rows.iter().find(|row| row["variant"] == variant).expect("a row");
        demand(row["errors"] == 0, "no error", row)?;
        demand(number(row, "of_limit")? > 0.0, "a limit", row)?;
    }
    Ok(())
}

#[test]
fn tensors_by_number_and_by_file() -> Result<()> {
    let rows_of = |tensors: &str| rows(2, &[&["fusion", "--tensors", tensors][..], &FEW].concat());
    assert_eq!(rows_of("100x64")?[1]["size_bytes"], 4 * 6400);
    let file = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("tensors");
    std::fs::write(&file, "10 20\n30\n")?;
    assert_eq!(rows_of(&file.to_string_lossy())?[1]["size_bytes"], 4 * 60);
    std::fs::write(&file, "10 many")?;
    for (tensors, words) in [
        (&*file.to_string_lossy(), "`many` is no number"),
        ("alexnet", "neither resnet50, lenet, deep or transformer"),
        ("3x0", "at least one element"),
    ] {
        alone(&["fusion", "--tensors", tensors])?.run()?.code(2)?.says(words)?;
    }
    Ok(())
}

#[test]
fn pieces_stand_beside_one_broadcast() -> Result<()> {
    for (ranks, transport) in [(1, "auto"), (2, "auto"), (3, "tcp")] {
        let options = ["broadcast-list", "--tensors", "lenet", "--transport", transport, "--check"];
        let rows = rows(ranks, &[&options[..], &FEW].concat())?;
        let variants: Vec<_> = rows.iter().map(|row| row["variant"].as_str()).collect();
        assert_eq!(variants, ["one", "pieces"].map(Some), "{ranks} ranks, {transport}");
        for row in &rows {
            demand(row["size_bytes"] == LENET_BYTES, "the bytes of all tensors", row)?;
            demand(number(row, "p50_us")? > 0.0, "a time", row)?;
            demand(number(row, "copies_per_byte")? >= 0.0, "copies", row)?;
        }
        demand(rows[1]["errors"] == 0, "no error", &rows[1])?;
        demand(number(&rows[1], "of_limit")? > 0.0, "a limit", &rows[1])?;
    }
    alone(&["broadcast-list", "--tensors", "3x0"])?.run()?.code(2)?.says("at least one element")?;
    Ok(())
}
