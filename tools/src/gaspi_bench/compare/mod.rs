//! `gaspi-bench compare`: the same calls by libgaspi and by MPI libraries, in one interleaved run.
//!
//! One program ([`SOURCE`]) is compiled for every library, so all of them run the same loop. Their jobs
//! stay alive side by side, and measure in turn, in bursts of some milliseconds, while all others
//! sleep: what the machine does meanwhile hits all of them. Libraries come from PyPI
//! ([`environment`]), started as a fair user would ([`rivals`]).

mod environment;
mod jobs;
mod outcome;
mod rivals;
#[cfg(test)]
mod script;

use crate::failure::{Failure, Result};
use crate::library::Library;
use crate::measure::Samples;
use crate::system;
use crate::transport::Choice;
use clap::Args;
use jobs::{Burst, Job, Operation};
use outcome::{Outcome, Row};
use rivals::{Rival, Side};
use std::fs;
use std::path::{Path, PathBuf};

/// What every rank runs.
const SOURCE: &str = include_str!("burst.c");

/// Elements of gaspi_allreduce, unless the configuration says otherwise.
const ELEMENTS_MAX: u32 = 255;
const SIZES: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 255];
/// What makes environments.
const PYTHON: &str = "python3";
const ROUNDS: usize = 40;
const ROUNDS_QUICK: usize = 8;

/// What a batch should take, in microseconds: long beside the clock, short beside a time slice.
const BATCH_US: f64 = 1000.0;
/// What a burst should take.
const BURST_US: f64 = 10_000.0;
const CALLS_MIN: f64 = 3.0;
const CALLS_MAX: f64 = 20_000.0;
const BATCHES_MAX: f64 = 10.0;

/// `compare`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Options {
    /// Ranks of each job; with a list, one comparison for each number
    #[arg(short = 'n', long, value_name = "LIST", value_delimiter = ',', default_value = "2", value_parser = clap::value_parser!(u32).range(2..=1024))]
    ranks: Vec<u32>,

    /// Doubles in an allreduce [default: powers of 2 up to 128, and 255]
    #[arg(short, long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=ELEMENTS_MAX as i64))]
    sizes: Vec<u32>,

    /// Libraries to compare with
    #[arg(
        long,
        value_enum,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "openmpi,impi,mpich"
    )]
    rivals: Vec<Rival>,

    /// How ranks reach each other, of all libraries
    #[arg(long, value_enum, default_value = "shm")]
    transport: Choice,

    /// Bursts of each library for each row [default: 40]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: Option<u32>,

    /// A fifth of the bursts
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,

    /// Where environments and programs are made and kept; results are written to results.jsonl there
    #[arg(long, value_name = "PATH", default_value = "target/compare")]
    directory: PathBuf,

    /// One JSON object for each row and library, and nothing else
    #[arg(long)]
    json: bool,
}

impl Options {
    fn operations(&self) -> Vec<Operation> {
        let sizes = if self.sizes.is_empty() { &SIZES[..] } else { &self.sizes };
        let allreduces = sizes.iter().map(|count| Operation::Allreduce(*count));
        std::iter::once(Operation::Barrier).chain(allreduces).collect()
    }

    fn rounds(&self) -> usize {
        let chosen = self.rounds.map(|rounds| rounds as usize);
        chosen.unwrap_or(if self.quick { ROUNDS_QUICK } else { ROUNDS })
    }
}

/// Makes what is missing, measures, prints.
pub(crate) fn run(options: &Options) -> Result<()> {
    let root = directory(&options.directory)?;
    let mut sides = vec![Side::Ours(Library::load()?.path)];
    for rival in &options.rivals {
        if !sides.iter().any(|side| side.name() == rival.name()) {
            sides.push(Side::Rival(*rival, environment::ensure(*rival, &root, Path::new(PYTHON))?));
        }
    }
    let programs: Vec<PathBuf> =
        sides.iter().map(|side| compile(side, &root)).collect::<Result<_>>()?;
    let cores = system::cores();
    let mut outcome = Outcome::new(&sides, &cores, &root, options.transport, options.json)?;
    for ranks in &options.ranks {
        outcome.begin(*ranks)?;
        compare(options, &sides, &programs, *ranks, &cores, &mut outcome)?;
    }
    outcome.finish()
}

/// The directory, made and as an absolute path: programs are started elsewhere.
fn directory(path: &Path) -> Result<PathBuf> {
    fs::create_dir_all(path)
        .and_then(|()| fs::canonicalize(path))
        .map_err(|error| Failure::run(format!("cannot make {}: {error}", path.display())))
}

/// The program for one side.
fn compile(side: &Side, root: &Path) -> Result<PathBuf> {
    let source = root.join("burst.c");
    let program = root.join(format!("{}-burst", side.name()));
    fs::write(&source, SOURCE)
        .map_err(|error| Failure::run(format!("cannot write {}: {error}", source.display())))?;
    let mut command = side.compile(&source, &program);
    let output = command.output().map_err(|error| {
        let compiler = command.get_program().to_string_lossy();
        Failure::run(format!(
            "{compiler}: {error}; a C compiler is needed (Debian: apt-get install gcc libc6-dev)"
        ))
    })?;
    if output.status.success() {
        return Ok(program);
    }
    let text = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    Err(Failure::run(format!("compiling for {}:\n{text}", side.title())))
}

/// All rows for one number of ranks.
fn compare(
    options: &Options,
    sides: &[Side],
    programs: &[PathBuf],
    ranks: u32,
    cores: &[usize],
    outcome: &mut Outcome,
) -> Result<()> {
    let mut jobs: Vec<Job> = Vec::new();
    for (side, program) in sides.iter().zip(programs) {
        jobs.push(Job::start(side, program, ranks, cores, options.transport)?);
    }
    for operation in options.operations() {
        let row = measure(&mut jobs, operation, options.rounds())?;
        outcome.row(&row)?;
    }
    jobs.into_iter().try_for_each(Job::stop)
}

/// Bursts of all jobs in turn.
fn measure(jobs: &mut [Job], operation: Operation, rounds: usize) -> Result<Row> {
    let mut bursts = Vec::new();
    let mut wrong = vec![0; jobs.len()];
    for (job, wrong) in jobs.iter_mut().zip(&mut wrong) {
        // A few calls tell how many make a batch, and those tell it better.
        let mut burst = Burst { operation, calls: CALLS_MIN as u32, batches: 1 };
        for _ in 0..2 {
            let figures = job.burst(burst)?;
            *wrong += figures.wrong;
            burst = plan(operation, figures.us.iter().copied().fold(f64::INFINITY, f64::min));
        }
        bursts.push(burst);
    }
    let mut times = vec![Vec::new(); jobs.len()];
    let mut medians = vec![Vec::new(); jobs.len()];
    for round in 0..rounds {
        for turn in 0..jobs.len() {
            // Nobody always follows the same other.
            let side = (round + turn) % jobs.len();
            let figures = jobs[side].burst(bursts[side])?;
            medians[side].push(Samples::new(figures.us.clone()).median());
            times[side].extend(figures.us);
            wrong[side] += figures.wrong;
        }
    }
    let samples = times.into_iter().map(Samples::new).collect();
    Ok(Row { operation, samples, bursts: medians, wrong })
}

/// A burst of calls that take `us` each.
fn plan(operation: Operation, us: f64) -> Burst {
    let us = us.max(0.001);
    let calls = (BATCH_US / us).clamp(CALLS_MIN, CALLS_MAX);
    let batches = (BURST_US / (calls * us)).clamp(1.0, BATCHES_MAX);
    Burst { operation, calls: calls as u32, batches: batches as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn parse(words: &[&str]) -> std::result::Result<Options, clap::Error> {
        Line::try_parse_from([&["compare"], words].concat()).map(|line| line.options)
    }

    #[test]
    fn the_command_line_chooses_ranks_sizes_and_rivals() {
        let options = parse(&["-n", "2,4", "-s", "1,255", "--rivals", "impi", "--quick"]).unwrap();
        assert_eq!(options.ranks, [2, 4]);
        assert_eq!(options.rivals, [Rival::Impi]);
        assert_eq!(options.rounds(), ROUNDS_QUICK);
        let expected = [Operation::Barrier, Operation::Allreduce(1), Operation::Allreduce(255)];
        assert_eq!(options.operations(), expected);
        let default = parse(&[]).unwrap();
        assert_eq!((default.rounds(), default.operations().len()), (ROUNDS, 1 + SIZES.len()));
        assert_eq!((default.rivals.len(), default.transport), (3, Choice::Shm));
        assert_eq!(parse(&["--transport", "tcp"]).unwrap().transport, Choice::Tcp);
        for wrong in [&["-n", "1"][..], &["-s", "256"], &["-s", "0"], &["--rivals", "gpi"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn bursts_take_about_the_same_time_whatever_a_call_takes() {
        let quick = plan(Operation::Barrier, 0.2);
        assert_eq!((quick.calls, quick.batches), (5000, 10));
        // 8 ms each: as few as there can be.
        let slow = plan(Operation::Barrier, 8000.0);
        assert_eq!((slow.calls, slow.batches), (3, 1));
        let none = plan(Operation::Barrier, 0.0);
        assert_eq!(none.calls, CALLS_MAX as u32);
    }
}
