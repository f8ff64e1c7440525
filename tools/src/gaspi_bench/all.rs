//! Every test with its default sizes, in one job.

use crate::arguments::{All, Init, Paired, Rate, Sizes};
use crate::failure::Result;
use crate::job::Job;
use crate::report::Report;
use crate::{atomics, collective, init, limits, notified, one_sided, passive, rates};

/// Threads of `write-rate`.
const THREADS: usize = 2;

pub(crate) fn run(job: &Job, all: &All, report: &mut Report) -> Result<()> {
    let plain = &all.plain;
    let sizes = Sizes::default_with(plain, all.cold);
    let paired = Paired { sizes: sizes.clone(), pairs: 1 };
    let init = Init { plain: plain.clone(), jobs: 1, no_cycles: false };
    limits::run(job, &sizes, report)?;
    if job.ranks > 1 {
        let warm = Paired { sizes: Sizes::default_with(plain, false), pairs: 1 };
        one_sided::write_latency(job, &paired, report)?;
        one_sided::read_latency(job, &paired, report)?;
        notified::latency(job, &paired, report)?;
        atomics::run(job, plain, report)?;
        notified::rate(job, plain, report)?;
        rates::run(job, &Rate { paired: warm, threads: THREADS }, report)?;
        one_sided::write_bandwidth(job, &paired, report)?;
        one_sided::read_bandwidth(job, &paired, report)?;
        passive::run(job, &sizes, report)?;
    }
    collective::barrier(job, plain, report)?;
    collective::allreduce(job, &sizes, report)?;
    init::run(job, &init, report)
}
