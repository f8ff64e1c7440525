//! gaspi-bench: measures libgaspi beside what the hardware gives.
//!
//! It calls the C library as programs do ([`library`]), as a rank of a job ([`job`], [`launch`]),
//! and measures each operation in batches between batches of its limit ([`measure`]): what the
//! same two processes reach without the library ([`baseline`]). Each kind of test is a file.
//! [`pair`] has what they share, [`report`] what they print, [`goals`] what they are to reach.
//!
//! Four commands are no rank of a job: [`info`] shows the machine, [`compare`] runs other libraries
//! beside ours, [`kernels`] measures the loops of reductions, [`scale`] starts jobs of many ranks.

mod algorithms;
mod all;
mod arguments;
mod atomics;
mod barrier;
mod baseline;
mod checks;
mod command;
#[path = "../compare/mod.rs"]
mod compare;
mod connections;
mod control;
mod data_collectives;
mod elements;
mod failure;
mod fd_passing;
mod fused;
mod goals;
mod info;
mod init;
mod job;
mod kernels;
mod launch;
mod library;
mod limits;
mod links;
mod machine;
mod measure;
mod memory;
mod notified;
mod one_sided;
mod pair;
mod passive;
mod places;
mod rates;
mod raw_verbs;
mod report;
mod resident;
mod row;
mod samples;
mod scale;
mod shm_baseline;
mod sockets;
mod standard_collectives;
mod system;
mod tcp_baseline;
mod tensors;
mod text;
mod transport;
mod verbs_baseline;

use arguments::Test;
use clap::Parser;
use command::{Arguments, Command};
use failure::Result;
use job::Job;
use report::{Facts, Report};
use std::process::ExitCode;

/// Refuses a command line that does not fit a job of so many ranks: once for all of them, which
/// have the same.
fn check(test: &Test, ranks: usize) -> Result<()> {
    let checked =
        launch::check_ranks(test.plain(), ranks).and_then(|()| checks::check(test, ranks));
    checked.map_err(|failure| if launch::is_first() { failure } else { failure.silent() })
}

fn run(test: &Test) -> Result<()> {
    launch::check()?;
    let ranks = launch::ranks(test.plain());
    ranks.map_or(Ok(()), |ranks| check(test, ranks))?;
    if let Test::Init(options) = test
        && !launch::is_rank()
    {
        return init::start_jobs(options);
    }
    launch::start_if_asked(test.plain())?;
    if data_collectives::tries_all(test) {
        algorithms::refuse_quietly();
    }
    let job = Job::join(test.plain(), &configuration(test)?).map_err(launch::of_rank)?;
    if ranks.is_none() {
        check(test, job.ranks)?;
    }
    let mut report = Report::new(test.plain(), Facts::of(&job, test.memory()), job.rank != 0);
    let measured = measure(&job, test, &mut report).and_then(|()| job.leave());
    measured.map_err(launch::of_rank)?;
    report.finish(job.errors())
}

/// Fields of gaspi_config_t that a test wants to be other than their defaults.
fn configuration(test: &Test) -> Result<Vec<(usize, u32)>> {
    let mut fields = Vec::new();
    if let Some(elements) = standard_collectives::elements(test)? {
        fields.push((library::CONFIG_ALLREDUCE_ELEM_MAX, elements));
    }
    if matches!(test, Test::Init(options) if options.peers) {
        fields.push((library::CONFIG_BUILD_INFRASTRUCTURE, library::TOPOLOGY_DYNAMIC));
    }
    Ok(fields)
}

/// One test on a rank of a job.
fn measure(job: &Job, test: &Test, report: &mut Report) -> Result<()> {
    match test {
        Test::Limits(sizes) => limits::run(job, sizes, report),
        Test::WriteLat(paired) => one_sided::write_latency(job, paired, report),
        Test::WriteBw(bandwidth) => one_sided::write_bandwidth(job, bandwidth, report),
        Test::ReadLat(paired) => one_sided::read_latency(job, paired, report),
        Test::ReadBw(paired) => one_sided::read_bandwidth(job, paired, report),
        Test::WriteNotifyLat(notified) => notified::latency(job, notified, report),
        Test::NotifyRate(plain) => notified::rate(job, plain, report),
        Test::WriteRate(rate) => rates::run(job, rate, report),
        Test::AtomicLat(plain) => atomics::run(job, plain, report),
        Test::PassiveLat(sizes) => passive::run(job, sizes, report),
        Test::Barrier(plain) => standard_collectives::barrier(job, plain, report),
        Test::AllreduceStandard(sizes) => standard_collectives::allreduce(job, sizes, report),
        Test::Fusion(step) => fused::run(job, step, report),
        Test::BroadcastList(pieces) => fused::broadcast_list(job, pieces, report),
        Test::Init(options) => init::run(job, options, report),
        Test::All(all) => all::run(job, all, report),
        test => data_collectives::run(job, test, report),
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.command {
        Command::Info(options) => return info::run(options.json),
        Command::Compare(options) => compare::run(options),
        Command::Kernels(options) => kernels::run(options),
        Command::Scale(options) => scale::run(options),
        Command::Test(test) => run(test),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                eprintln!("gaspi-bench {}: {failure}", arguments.command.name());
            }
            ExitCode::from(failure.status)
        }
    }
}
