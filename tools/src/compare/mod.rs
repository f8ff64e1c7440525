//! `gaspi-bench compare`: the same calls by libgaspi and by other libraries, in one interleaved
//! run.
//!
//! One program ([`program`]) is compiled for every library, so all of them run the same loop. Their
//! jobs stay alive side by side, and measure in turn, in bursts of some milliseconds, while all
//! others sleep: what the machine does meanwhile hits all of them. Libraries come from PyPI
//! ([`environment`]), started as a fair user would ([`rivals`]).

mod chart;
mod environment;
mod goals;
mod jobs;
mod loopback;
mod no_result;
mod operation;
mod outcome;
mod program;
mod rivals;
mod row;
mod sampling;
#[cfg(test)]
mod script;

use crate::failure::{Failure, Result};
use crate::library::Library;
use crate::system;
use crate::text::parse_size;
use crate::transport::Choice;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use goals::Setting;
use jobs::{Burst, CALLS_MAX, Job};
use operation::{Memory, Operation, Shape};
use outcome::Outcome;
use rivals::{Rival, Side};
use row::Row;
use sampling::{Effort, Entrant, QUICK, THOROUGH};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const SIZES: [usize; 17] = [
    8,
    64,
    512,
    KIB,
    4 * KIB,
    8 * KIB,
    16 * KIB,
    32 * KIB,
    64 * KIB,
    128 * KIB,
    256 * KIB,
    512 * KIB,
    MIB,
    4 * MIB,
    16 * MIB,
    64 * MIB,
    256 * MIB,
];
const SIZES_QUICK: [usize; 8] = [8, KIB, 4 * KIB, 32 * KIB, 256 * KIB, MIB, 16 * MIB, 256 * MIB];
/// What makes environments.
const PYTHON: &str = "python3";

/// Calls that show what the ranks of a library talk over: bytes, calls, and what each sends at
/// least. Somebody has to hear of all that another has; a packet has headers of 52 bytes.
const PROBES: [(usize, u32, u64); 2] = [(8, CALLS_MAX, 60), (MIB, 4, MIB as u64)];

/// `compare`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Options {
    /// Ranks of each job; with a list, one comparison for each number
    #[arg(
        short = 'n',
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "2",
        value_parser = clap::value_parser!(u32).range(2..=1024),
        allow_hyphen_values = true
    )]
    ranks: Vec<u32>,

    /// What to compare
    #[arg(
        long,
        visible_alias = "operations",
        value_enum,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "barrier,allreduce,broadcast"
    )]
    operation: Vec<Operation>,

    /// Bytes of the larger buffer, with K, M or G for powers of 1024 [default: 8 to 256M]
    #[arg(short, long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size,
          allow_hyphen_values = true)]
    sizes: Vec<usize>,

    /// Libraries to compare with; oneccl takes 2 GB of disk
    #[arg(
        long,
        value_enum,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "openmpi,impi,mpich,oneccl"
    )]
    rivals: Vec<Rival>,

    /// This library alone
    #[arg(long, conflicts_with = "rivals")]
    alone: bool,

    /// How ranks reach each other, of all libraries
    #[arg(long, value_enum, default_value = "shm", value_parser = transports())]
    transport: Choice,

    /// Where the buffers of this library lie
    #[arg(long, value_enum, default_value = "segment")]
    memory: Memory,

    /// With a buffer for the input and another for the result
    #[arg(long)]
    out_of_place: bool,

    /// Bursts of each library for each row [default: 60, fewer where they take long]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000),
          allow_negative_numbers = true)]
    rounds: Option<u32>,

    /// In two minutes: fewer sizes, fewer bursts
    #[arg(long)]
    quick: bool,

    /// Where environments and programs are made and kept
    #[arg(long, value_name = "PATH", default_value = "target/compare")]
    directory: PathBuf,

    /// Where results.jsonl and the charts are written [default: the directory of --directory]
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,

    /// One JSON object for each row and library, and nothing else
    #[arg(long)]
    json: bool,
}

/// What all libraries can be told to use.
fn transports() -> impl TypedValueParser<Value = Choice> {
    let choices = [Choice::Shm, Choice::Tcp];
    PossibleValuesParser::new(choices.iter().filter_map(Choice::to_possible_value))
        .try_map(|name| Choice::from_str(&name, false))
}

impl Options {
    /// What is measured of an operation on so many ranks.
    fn shapes(&self, operation: Operation, ranks: u32) -> Vec<Shape> {
        let sizes = match (&self.sizes[..], self.quick) {
            _ if operation == Operation::Barrier => &[0],
            ([], true) => &SIZES_QUICK[..],
            ([], false) => &SIZES,
            (chosen, _) => chosen,
        };
        let shape =
            |bytes: &usize| Shape::new(operation, *bytes, ranks, self.memory, !self.out_of_place);
        sizes.iter().map(shape).collect()
    }

    fn effort(&self) -> Effort {
        let default = if self.quick { QUICK } else { THOROUGH };
        match self.rounds {
            Some(rounds) => {
                let rival = Duration::MAX;
                Effort { rounds_min: rounds, rounds_max: rounds, rival, ..default }
            }
            None => default,
        }
    }
}

/// Makes what is missing, measures, prints.
pub(crate) fn run(options: &Options) -> Result<()> {
    let root = directory(&options.directory)?;
    let results = match &options.output {
        Some(path) => directory(path)?,
        None => root.clone(),
    };
    let ours = Side::Ours(Library::load()?.path);
    let mut sides = vec![(program::compile(&ours, &root)?, ours)];
    let rivals = if options.alone { &[][..] } else { &options.rivals };
    let (mut reasons, mut missing) = (Vec::new(), Vec::new());
    for rival in rivals {
        if sides.iter().any(|(_, side)| side.name() == rival.name()) {
            continue;
        }
        match provide(*rival, &root) {
            Ok(side) => sides.push(side),
            Err(failure) => {
                eprintln!("gaspi-bench compare: without {}: {failure}", rival.title());
                reasons.push(format!("{}: {failure}", rival.title()));
                missing.push((rival.name(), failure.message));
            }
        }
    }
    demand_rivals(sides.len() - 1, rivals, &reasons)?;
    let cores = system::cores();
    let compared: Vec<Side> = sides.iter().map(|(_, side)| side.clone()).collect();
    let mut outcome = Outcome::new(&compared, &cores, &results, options.json)?;
    for (library, reason) in missing {
        outcome.without(library, &reason)?;
    }
    let mut each = options.ranks.iter();
    let compared =
        each.try_for_each(|ranks| compare(options, &sides, *ranks, &cores, &mut outcome));
    // What there is of a run that failed is told too.
    let told = outcome.end().and_then(|()| outcome.finish());
    compared.and(told)
}

/// The program of a rival and what it is linked with.
fn provide(rival: Rival, root: &Path) -> Result<(PathBuf, Side)> {
    let side = Side::Rival(rival, environment::ensure(rival, root, Path::new(PYTHON))?);
    Ok((program::compile(&side, root)?, side))
}

/// Checks that there is a library to compare with, if one was asked for.
fn demand_rivals(found: usize, asked: &[Rival], reasons: &[String]) -> Result<()> {
    if found > 0 || asked.is_empty() {
        return Ok(());
    }
    Err(Failure::run(format!(
        "no other library can be compared (--alone measures this one):\n  {}",
        reasons.join("\n  ")
    )))
}

/// The directory, made and as an absolute path: programs are started elsewhere.
fn directory(path: &Path) -> Result<PathBuf> {
    fs::create_dir_all(path)
        .and_then(|()| fs::canonicalize(path))
        .map_err(|error| Failure::run(format!("cannot make {}: {error}", path.display())))
}

/// All rows for one number of ranks.
fn compare(
    options: &Options,
    sides: &[(PathBuf, Side)],
    ranks: u32,
    cores: &[usize],
    outcome: &mut Outcome,
) -> Result<()> {
    let tcp = options.transport == Choice::Tcp;
    let (mut entrants, mut reasons) = (Vec::new(), Vec::new());
    for (program, side) in sides {
        let started = Job::start(side, program, ranks, cores, options.transport)
            .and_then(|mut job| if tcp { demand_tcp(&mut job).map(|()| job) } else { Ok(job) });
        entrants.push(match side {
            Side::Ours(_) => Entrant::ours(started?),
            Side::Rival(..) => {
                reasons.extend(started.as_ref().err().map(|failure| failure.message.clone()));
                Entrant::rival(started)
            }
        });
    }
    if !options.alone && entrants.iter().filter(|entrant| entrant.is_running()).count() == 1 {
        return demand_rivals(0, &options.rivals, &reasons);
    }
    for operation in &options.operation {
        let crowded = ranks as usize > cores.len();
        let setting =
            Setting { operation: *operation, tcp, memory: options.memory, ranks, crowded };
        outcome.begin(setting, !options.out_of_place)?;
        entrants.iter_mut().for_each(Entrant::begin);
        for shape in options.shapes(*operation, ranks) {
            let lanes = sampling::measure(&mut entrants, shape, options.effort())?;
            outcome.row(Row { shape, ranks, lanes })?;
        }
        outcome.end()?;
    }
    entrants.into_iter().try_for_each(Entrant::stop)
}

/// Refuses a job whose ranks do not use TCP, in small calls and in large ones.
fn demand_tcp(job: &mut Job) -> Result<()> {
    for (bytes, calls, each) in PROBES {
        let shape = Shape::new(Operation::Allreduce, bytes, 1, Memory::Private, true);
        let before = loopback::bytes()?;
        job.burst(Burst { shape, calls, limit: jobs::LIMIT }, jobs::LIMIT)?;
        let (sent, least) = (loopback::bytes()? - before, each * u64::from(calls));
        if sent < least {
            return Err(Failure::run(format!(
                "{} does not use TCP: {calls} calls of {bytes} bytes sent {sent} bytes over \
                 loopback instead of {least} at least",
                job.title()
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    fn parse(words: &[&str]) -> std::result::Result<Options, clap::Error> {
        Command::try_parse_from([&["compare"], words].concat()).map(|command| command.options)
    }

    fn bytes(options: &Options, operation: Operation) -> Vec<usize> {
        options.shapes(operation, 4).iter().map(Shape::bytes).collect()
    }

    #[test]
    fn the_command_line_chooses_ranks_operations_sizes_and_rivals() {
        let words = ["-n", "2,4", "-s", "8,1K,4M", "--rivals", "impi,oneccl", "--quick"];
        let options = parse(&words).unwrap();
        assert_eq!(options.ranks, [2, 4]);
        assert_eq!(options.rivals, [Rival::Impi, Rival::Oneccl]);
        assert_eq!(bytes(&options, Operation::Allreduce), [8, 1 << 10, 4 << 20]);
        // Blocks of four ranks.
        assert_eq!(bytes(&options, Operation::Alltoall), [16, 1 << 10, 4 << 20]);
        assert_eq!(bytes(&options, Operation::Barrier), [0]);
        let default = parse(&[]).unwrap();
        assert_eq!((default.rivals.len(), default.transport), (4, Choice::Shm));
        assert_eq!(bytes(&default, Operation::Allreduce), SIZES);
        assert_eq!(default.memory, Memory::Segment);
        let private = parse(&["--memory", "private", "--operation", "reduce_scatter,gather"]);
        let private = private.unwrap();
        assert_eq!(private.operation, [Operation::ReduceScatter, Operation::Gather]);
        assert_eq!(private.memory, Memory::Private);
        assert_eq!(parse(&["--transport", "tcp"]).unwrap().transport, Choice::Tcp);
        let wrong: [&[&str]; 7] = [
            &["--transport", "verbs"],
            &["--transport", "auto"],
            &["-n", "1"],
            &["-s", "2G"],
            &["-s", "0"],
            &["--rivals", "gpi"],
            &["--alone", "--rivals", "impi"],
        ];
        for wrong in wrong {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_number_of_rounds_that_is_asked_for_is_made() {
        let effort = parse(&["--rounds", "5", "--quick"]).unwrap().effort();
        assert_eq!((effort.rounds_min, effort.rounds_max), (5, 5));
        let effort = parse(&["--quick"]).unwrap().effort();
        assert_eq!((effort.rounds_min, effort.rounds_max), (QUICK.rounds_min, QUICK.rounds_max));
    }

    #[test]
    fn without_any_rival_there_is_no_comparison() {
        let reasons = ["MPICH: no network".to_owned()];
        let failure = demand_rivals(0, &[Rival::Mpich], &reasons).unwrap_err();
        assert!(failure.message.contains("MPICH: no network"), "{failure}");
        assert!(demand_rivals(1, &[Rival::Mpich, Rival::Impi], &reasons).is_ok());
        assert!(demand_rivals(0, &[], &[]).is_ok());
    }
}
