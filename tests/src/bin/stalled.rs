//! A rank of the test of stall warnings: `stalled VICTIM FILE`.
//!
//! All ranks take a step of a fused buffer of two tensors, then another one, in which VICTIM
//! submits nothing before FILE is gone. Warnings go to standard error.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use gaspi::collectives::fusion::{Fusion, Options, Tensor};
use gaspi::collectives::{DataType, Operation};
use gaspi::{Config, GroupId, Job, PendingInit, Rank, Result, Timeout};
use gaspi_tests::run_rank;

/// A guard: nothing may take longer.
const GUARD: Timeout = Timeout::Millis(60_000);
const COUNTS: [usize; 2] = [300, 7];

/// Says what the library warns of.
struct Warnings;

impl log::Log for Warnings {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            eprintln!("{}", record.args());
        }
    }

    fn flush(&self) {}
}

fn main() -> ExitCode {
    if log::set_logger(&Warnings).is_ok() {
        log::set_max_level(log::LevelFilter::Warn);
    }
    run_rank("stalled VICTIM FILE", |arguments| match arguments {
        [victim, file] => Some(steps(Rank(victim.parse().ok()?), Path::new(file))),
        _ => None,
    })
}

fn steps(victim: Rank, file: &Path) -> Result<()> {
    let rt = PendingInit::new(Job::from_environment()?, Config::default())?.wait(GUARD)?;
    let tensors = COUNTS.map(|count| Tensor { count: count as u64, ty: DataType::F32 });
    let options = Options { operation: Operation::Sum, ..Options::default() };
    let fusion = Fusion::create(&rt, &tensors, GroupId::ALL, &options, GUARD)?;
    fusion.warn_of_stalls_after(Some(Duration::from_millis(100)));
    for step in 1..=2 {
        if step == 2 {
            println!("ready {}", rt.rank().0);
            while rt.rank() == victim && file.exists() {
                std::thread::yield_now();
            }
        }
        let data = [step as f32; 300];
        for tensor in 0..COUNTS.len() {
            // SAFETY: no tensor has more elements.
            unsafe { fusion.submit(tensor, data.as_ptr().cast(), 1.0) }?;
        }
        for (tensor, count) in COUNTS.into_iter().enumerate() {
            let mut sum = [0.0_f32; 300];
            // SAFETY: no tensor has more elements.
            unsafe { fusion.wait(tensor, sum.as_mut_ptr().cast(), GUARD) }?;
            assert_eq!(sum[..count], vec![(step * rt.size()) as f32; count], "step {step}");
        }
    }
    drop(fusion);
    rt.barrier(GroupId::ALL, GUARD)?;
    rt.term(GUARD)?;
    println!("finished {}", rt.rank().0);
    Ok(())
}
