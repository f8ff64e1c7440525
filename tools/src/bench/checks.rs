//! What clap cannot check: whether the options of a test fit each other and the job. Checked before
//! anything is started.

use crate::arguments::{Paired, Sizes, Test};
use crate::failure::{Failure, Result};
use crate::standard_collectives::{self, DOUBLE};
use crate::{data_collectives, passive, tensors};

/// passive_transfer_size_max.
const PASSIVE_MAX: usize = 65_535;
/// Queues that a rank may have at most.
const QUEUES_MAX: usize = 16;

/// Refuses options that a job of `ranks` ranks cannot follow.
pub(crate) fn check(test: &Test, ranks: usize) -> Result<()> {
    match test {
        Test::WriteLat(paired) | Test::ReadLat(paired) | Test::ReadBw(paired) => {
            check_paired(paired, ranks)
        }
        Test::WriteBw(bandwidth) => check_paired(&bandwidth.paired, ranks),
        Test::WriteNotifyLat(notified) => check_paired(&notified.paired, ranks),
        Test::WriteRate(rate) => {
            if rate.paired.sizes.cold {
                let message = "writes the same lines every time; leave --cold out";
                return Err(Failure::usage(message));
            }
            if rate.threads > QUEUES_MAX {
                return Err(Failure::usage(format!(
                    "{} threads need a queue each, and a rank has {QUEUES_MAX} at most",
                    rate.threads
                )));
            }
            check_paired(&rate.paired, ranks)
        }
        Test::NotifyRate(_) | Test::AtomicLat(_) => check_pairs(1, ranks),
        Test::PassiveLat(sizes) => {
            check_sizes(
                sizes,
                &passive::SIZES,
                |size| size <= PASSIVE_MAX,
                || format!("passive messages have at most {PASSIVE_MAX} bytes"),
            )?;
            check_pairs(1, ranks)
        }
        Test::AllreduceStandard(sizes) => {
            let is_whole = |size: usize| size.is_multiple_of(DOUBLE);
            check_sizes(sizes, &standard_collectives::SIZES, is_whole, || {
                format!("allreduce-standard takes doubles: multiples of {DOUBLE} bytes")
            })
        }
        Test::Limits(sizes) => check_series(sizes),
        Test::Fusion(step) => tensors::counts(&step.all.tensors).map(drop),
        Test::BroadcastList(pieces) => tensors::counts(&pieces.tensors).map(drop),
        Test::Barrier(_) | Test::Init(_) | Test::All(_) => Ok(()),
        _ => data_collectives::check(test, ranks),
    }
}

fn check_paired(paired: &Paired, ranks: usize) -> Result<()> {
    check_series(&paired.sizes)?;
    check_pairs(paired.pairs, ranks)
}

/// The series has at least one size.
fn check_series(sizes: &Sizes) -> Result<()> {
    check_sizes(sizes, &[DOUBLE], |_| true, String::new)
}

fn check_sizes(
    sizes: &Sizes,
    default: &[usize],
    fits: impl Fn(usize) -> bool,
    rule: impl FnOnce() -> String,
) -> Result<()> {
    match sizes.sizes(default)?.into_iter().find(|size| !fits(*size)) {
        Some(size) => Err(Failure::usage(format!("size {size}: {}", rule()))),
        None => Ok(()),
    }
}

fn check_pairs(pairs: usize, ranks: usize) -> Result<()> {
    let needed = pairs.saturating_mul(2);
    if ranks >= needed {
        return Ok(());
    }
    let s = |count: usize| if count == 1 { "" } else { "s" };
    Err(Failure::usage(format!(
        "{pairs} pair{} of ranks needed: this job has {ranks} rank{}, start it with -n {needed}",
        s(pairs),
        s(ranks),
    )))
}
