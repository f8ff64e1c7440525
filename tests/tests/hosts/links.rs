//! Fused buffers over links of 1 Gbit/s: how much of the communication computing hides.

use gaspi_tests::hosts::Hosts;
use gaspi_tests::{Result, build_directory};
use libtest_mimic::Trial;
use serde_json::Value;

use crate::by_hand::Start;
use crate::{PLAIN, expect, failed, trial};

const MBIT_PER_S: u32 = 1000;
/// 10.5 MB, which take at least 84 ms in each direction.
const TENSORS: [&str; 4] = ["fusion", "--tensors", "40x65536", "--json"];
/// Microseconds of computing: about as long as the link takes.
const COMPUTE: &str = "90000";
/// What has to be hidden at least. Machines that do nothing else hide 0.9
/// (docs/performance.md); where others need the cores it is less.
const HIDDEN: f64 = 0.4;
/// What values of 16 bits may take in terms of those of 32, where it is a half on an idle machine.
const NARROW: f64 = 0.75;
/// Whatever else needs the cores makes it less, for as long as it does: one of these jobs has to
/// show it. What is wrong in any of them is not tried again.
const ATTEMPTS: usize = 5;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("links/a-step-hides-behind-computing", || hides("reverse")),
        trial("links/in-any-order-too", || hides("random")),
        trial("links/values-of-16-bits-take-half-the-time", narrow),
    ]
}

/// What gaspi-bench says of two ranks, each on a host of its own.
fn rows(options: &[&str]) -> Result<Vec<Value>> {
    let hosts = Hosts::new(2, PLAIN)?;
    (0..2).try_for_each(|host| hosts.limit_rate(host, MBIT_PER_S))?;
    let bench = build_directory()?.join("gaspi-bench");
    let arguments = [&TENSORS[..], options].concat();
    let outcomes = Start::new(&hosts, &[0, 1], bench, &arguments).start()?.wait()?;
    let mut rows = Vec::new();
    for outcome in outcomes {
        for line in outcome.success()?.stdout.lines() {
            rows.push(serde_json::from_str(line).map_err(|error| failed(format!("{error}")))?);
        }
    }
    hosts.await_idle()?;
    Ok(rows)
}

fn number(rows: &[Value], variant: &str, key: &str) -> Result<f64> {
    let row = rows.iter().find(|row| row["variant"] == variant);
    let number = row.and_then(|row| row[key].as_f64());
    number.ok_or_else(|| failed(format!("{variant}: {key} is no number in {rows:?}")))
}

/// Runs jobs until one gives a figure that is good.
fn one_of_some(run: impl Fn() -> Result<f64>, is_good: fn(f64) -> bool) -> Result<()> {
    let mut seen = Vec::new();
    for _ in 0..ATTEMPTS {
        let figure = run()?;
        if is_good(figure) {
            return Ok(());
        }
        seen.push(figure);
    }
    Err(failed(format!("what was seen in each of the jobs: {seen:.2?}")))
}

/// How much of the communication computing hides.
fn hides(order: &str) -> Result<()> {
    let run = || {
        let rows = rows(&["--iterations", "10", "--compute", COMPUTE, "--order", order])?;
        let computing: f64 = COMPUTE.parse().map_err(|error| failed(format!("{error}")))?;
        let alone = number(&rows, "in place", "p50_us")?;
        let both = number(&rows, "with computing", "p50_us")?;
        expect(alone > 80_000.0, format!("{alone} us is faster than the link"))?;
        Ok(1.0 - (both - computing) / alone)
    };
    one_of_some(run, |hidden| hidden > HIDDEN)
}

/// How long values of 16 bits take in terms of those of 32.
fn narrow() -> Result<()> {
    let run = || {
        let rows = rows(&["--iterations", "10", "--wire", "bf16"])?;
        expect(number(&rows, "wire bf16", "errors")? == 0.0, "values are wrong")?;
        number(&rows, "wire bf16", "of_limit")
    };
    one_of_some(run, |ratio| ratio < NARROW)
}
