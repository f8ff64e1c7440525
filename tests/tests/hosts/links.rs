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

fn hides(order: &str) -> Result<()> {
    let rows = rows(&["--iterations", "10", "--compute", COMPUTE, "--order", order])?;
    let computing: f64 = COMPUTE.parse().map_err(|error| failed(format!("{error}")))?;
    let alone = number(&rows, "in place", "p50_us")?;
    let both = number(&rows, "with computing", "p50_us")?;
    expect(alone > 80_000.0, format!("{alone} us is faster than the link"))?;
    let hidden = 1.0 - (both - computing) / alone;
    expect(hidden > HIDDEN, format!("hides {hidden:.2} of {alone} us: both take {both} us"))
}

fn narrow() -> Result<()> {
    let rows = rows(&["--iterations", "10", "--wire", "bf16"])?;
    let ratio = number(&rows, "wire bf16", "of_limit")?;
    expect(ratio < NARROW, format!("bf16 takes {ratio:.2} of the time of f32"))?;
    expect(number(&rows, "wire bf16", "errors")? == 0.0, "values are wrong")
}
