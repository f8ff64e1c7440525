//! Every test but `fusion` and `broadcast-list` with its default sizes, in one job.

use crate::arguments::{All, Bandwidth, Init, Notified, Paired, Rate, Sizes};
use crate::failure::Result;
use crate::job::Job;
use crate::report::Report;
use crate::{
    atomics, data_collectives, init, limits, notified, one_sided, passive, rates,
    standard_collectives,
};

/// Threads of `write-rate`.
const THREADS: usize = 2;
/// As `--both-ways` and `--sleeping` have them.
const QUEUES: u8 = 4;
const SLEEPING_US: u32 = 400;

pub(crate) fn run(job: &Job, all: &All, report: &mut Report) -> Result<()> {
    let plain = &all.plain;
    let sizes = Sizes::default_with(plain, all.cold);
    let paired = Paired { sizes: sizes.clone(), pairs: 1 };
    let init = Init { plain: plain.clone(), jobs: 1, no_cycles: false, peers: false };
    limits::run(job, &sizes, report)?;
    if job.ranks > 1 {
        let warm = Paired { sizes: Sizes::default_with(plain, false), pairs: 1 };
        one_sided::write_latency(job, &paired, report)?;
        one_sided::read_latency(job, &paired, report)?;
        for sleeping in [None, Some(SLEEPING_US)] {
            let paired = paired.clone();
            notified::latency(job, &Notified { paired, sleeping }, report)?;
        }
        atomics::run(job, plain, report)?;
        notified::rate(job, plain, report)?;
        rates::run(job, &Rate { paired: warm, threads: THREADS }, report)?;
        for both_ways in [false, true] {
            let paired = paired.clone();
            let bandwidth = Bandwidth { paired, both_ways, queues: QUEUES };
            one_sided::write_bandwidth(job, &bandwidth, report)?;
        }
        one_sided::read_bandwidth(job, &paired, report)?;
        passive::run(job, &sizes, report)?;
    }
    standard_collectives::barrier(job, plain, report)?;
    standard_collectives::allreduce(job, &sizes, report)?;
    data_collectives::run_all(job, plain, all.cold, report)?;
    init::run(job, &init, report)
}
