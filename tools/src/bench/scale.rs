//! `gaspi-bench scale`: what jobs of many ranks cost on this host, in one table with a column for
//! each number of ranks.
//!
//! It starts jobs one after another; each rank measures itself ([`rank`]) and prints one line.
//! After those of a column one more job loses a rank, and the others tell when they knew.

mod rank;

use crate::arguments::Bind;
use crate::failure::{Failure, Result};
use crate::library::Library;
use crate::report;
use crate::samples::Samples;
use crate::transport::{self, Choice};
use crate::{launch, machine, system, text};
use clap::Args;
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

/// `scale`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Options {
    /// Numbers of ranks, all of them on this host: 16,64,256
    #[arg(
        short = 'n',
        long = "ranks",
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "16,64",
        value_parser = clap::value_parser!(u32).range(2..=65535),
        allow_hyphen_values = true
    )]
    ranks: Vec<u32>,

    /// How ranks reach each other [default: what GASPI_TRANSPORT says, else auto]
    #[arg(long, value_enum)]
    transport: Option<Choice>,

    /// Where ranks run: one core each in turn, or wherever the kernel puts them
    #[arg(long, value_enum)]
    bind: Option<Bind>,

    /// Jobs of each number of ranks; medians of them are shown
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..),
        allow_negative_numbers = true
    )]
    jobs: u32,

    /// One JSON object for each number of ranks, and nothing else
    #[arg(long)]
    json: bool,

    /// What this process does as a rank; said by the command itself
    #[arg(long, value_enum, hide = true)]
    part: Option<rank::Part>,
}

/// How the figures of the ranks become one.
#[derive(Debug, Clone, Copy)]
enum Of {
    Slowest,
    Mean,
    Most,
}

/// What a figure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Us,
    Bytes,
    Count,
}

/// A line of the table.
struct Line {
    key: &'static str,
    text: &'static str,
    of: Of,
    unit: Unit,
}

const fn line(key: &'static str, text: &'static str, of: Of, unit: Unit) -> Line {
    Line { key, text, of, unit }
}

/// What each rank prints, by the keys of its line.
const LINES: [Line; 11] = [
    line("proc_init_us", "gaspi_proc_init", Of::Slowest, Unit::Us),
    line("segment_create_us", "gaspi_segment_create of 64 KiB", Of::Slowest, Unit::Us),
    line("barrier_us", "gaspi_barrier, mean of five", Of::Slowest, Unit::Us),
    line("allreduce_us", "gaspi_allreduce of one double", Of::Slowest, Unit::Us),
    line("coll_first_us", "first gaspi_coll_allreduce", Of::Slowest, Unit::Us),
    line("coll_next_us", "the next, mean of five", Of::Slowest, Unit::Us),
    line("proc_term_us", "gaspi_proc_term", Of::Slowest, Unit::Us),
    line("cpu_us", "CPU time of a rank for all that", Of::Mean, Unit::Us),
    line("descriptors", "descriptors after gaspi_proc_init", Of::Most, Unit::Count),
    line("descriptors_later", "descriptors before gaspi_proc_term", Of::Most, Unit::Count),
    line("private_bytes", "private memory after gaspi_proc_init", Of::Most, Unit::Bytes),
];
const WHOLE_JOB: Line = line("whole_job_us", "the whole job", Of::Slowest, Unit::Us);
const DEATH_KNOWN: Line =
    line("death_known_us", "kill -9 of a rank, until all know", Of::Slowest, Unit::Us);

/// The lines of a table, in order.
fn lines() -> impl Iterator<Item = &'static Line> {
    LINES.iter().chain([&WHOLE_JOB, &DEATH_KNOWN])
}

impl Of {
    fn ranks(self, figures: &[f64]) -> f64 {
        match self {
            Of::Slowest | Of::Most => figures.iter().copied().fold(0.0, f64::max),
            Of::Mean => figures.iter().sum::<f64>() / figures.len().max(1) as f64,
        }
    }
}

impl Unit {
    fn text(self, figure: f64) -> String {
        match self {
            Unit::Us if figure >= 1e6 => format!("{:.2} s", figure / 1e6),
            Unit::Us if figure >= 1e3 => format!("{:.2} ms", figure / 1e3),
            Unit::Us => format!("{figure:.2} us"),
            Unit::Bytes => format!("{:.2} MiB", figure / f64::from(1 << 20)),
            Unit::Count => format!("{figure:.0}"),
        }
    }
}

/// Figures of one number of ranks, by the keys of lines.
type Column = Map<String, Value>;

/// Measures and prints all, or does the part of a rank.
pub(crate) fn run(options: &Options) -> Result<()> {
    if let Some(part) = options.part {
        return rank::run(part, options.transport).map_err(launch::of_rank);
    }
    launch::check()?;
    if launch::is_rank() {
        let failure = Failure::usage("it starts jobs by itself; run it without a launcher");
        return Err(if launch::is_first() { failure } else { failure.silent() });
    }
    let transport = options.transport.map_or_else(
        || std::env::var(transport::VARIABLE).unwrap_or_else(|_| Choice::Auto.name().into()),
        |choice| choice.name().into(),
    );
    let columns: Result<Vec<Column>> = options
        .ranks
        .iter()
        .map(|ranks| {
            let column = column(options, *ranks, &transport)?;
            if options.json {
                text::write_line(&Value::Object(column.clone()).to_string())?;
            }
            Ok(column)
        })
        .collect();
    let columns = columns?;
    if options.json { Ok(()) } else { print(options, &transport, &columns) }
}

fn print(options: &Options, transport: &str, columns: &[Column]) -> Result<()> {
    let library = Library::load()?.path.display().to_string();
    let ranks: Vec<String> = options.ranks.iter().map(u32::to_string).collect();
    let jobs = match options.jobs {
        1 => "one job of each, and one that loses a rank".to_owned(),
        jobs => format!("medians of {jobs} jobs of each, and one that loses a rank"),
    };
    let header = report::header(&[
        ("library", &library),
        ("machine", &machine::processor()),
        ("cores", &format!("{} usable", system::cores().len())),
        ("ranks", &format!("{}, transport {transport}; {jobs}", ranks.join(", "))),
    ]);
    text::write_line(&format!(
        "{header}# times are those of the slowest rank, CPU time is the mean of the ranks, memory \
         and\n# descriptors are those of the rank that has most\n"
    ))?;
    let heads = options.ranks.iter().map(|ranks| format!("{ranks:>9} ranks")).collect::<String>();
    text::write_line(&format!("{:<38}{heads}", "what"))?;
    for Line { key, text, unit, .. } in lines() {
        let cells = columns.iter().map(|column| {
            let cell = column.get(*key).and_then(Value::as_f64).map(|figure| unit.text(figure));
            format!("{:>15}", cell.unwrap_or_else(|| "-".into()))
        });
        text::write_line(&format!("{text:<38}{}", cells.collect::<String>()))?;
    }
    Ok(())
}

/// All jobs of one number of ranks.
fn column(options: &Options, ranks: u32, transport: &str) -> Result<Column> {
    let mut figures: Vec<Vec<f64>> = vec![Vec::new(); LINES.len()];
    let mut whole = Vec::new();
    for _ in 0..options.jobs {
        let begin = Instant::now();
        let lines = job(options, ranks, rank::Part::Steps)?;
        whole.push(crate::job::micros(begin.elapsed()));
        for (line, figures) in LINES.iter().zip(&mut figures) {
            // Not told by each kernel.
            let of_ranks: Vec<f64> =
                lines.iter().filter_map(|rank| rank[line.key].as_f64()).collect();
            if of_ranks.len() == lines.len() {
                figures.push(line.of.ranks(&of_ranks));
            }
        }
    }
    let mut column = Column::new();
    column.insert("ranks".into(), json!(ranks));
    column.insert("transport".into(), json!(transport));
    column.insert("jobs".into(), json!(options.jobs));
    for (line, figures) in LINES.iter().zip(figures) {
        if !figures.is_empty() {
            column.insert(line.key.into(), json!(Samples::new(figures).median()));
        }
    }
    column.insert(WHOLE_JOB.key.into(), json!(Samples::new(whole).median()));
    let lines = job(options, ranks, rank::Part::Death)?;
    column.insert(DEATH_KNOWN.key.into(), json!(death_known_us(&lines)?));
    Ok(column)
}

/// From the moment at which a rank killed itself to that at which the last of the others knew.
fn death_known_us(lines: &[Value]) -> Result<f64> {
    let times = |key: &str| lines.iter().filter_map(|rank| rank[key].as_f64()).collect::<Vec<_>>();
    let (killed, known) = (times(rank::KILLED), times(rank::KNOWN));
    let ([killed], Some(last)) = (&killed[..], known.iter().copied().reduce(f64::max)) else {
        return Err(Failure::run("no rank told when it was killed, or none when it knew"));
    };
    if known.len() + 1 != lines.len() {
        return Err(Failure::run("a rank printed neither when it was killed nor when it knew"));
    }
    Ok(last - killed)
}

/// What starts one job.
fn command(options: &Options, ranks: u32, part: rank::Part) -> Result<Command> {
    let mut arguments: Vec<OsString> = vec!["scale".into(), "--part".into(), part.name().into()];
    if let Some(choice) = options.transport {
        arguments.extend(["--transport".into(), choice.name().into()]);
    }
    let ends: &[&str] = match part {
        rank::Part::Steps => &["--kill-on-failure"],
        // The others outlive the rank that is killed.
        rank::Part::Death => &[],
    };
    launch::here(ends, ranks, options.bind, arguments)
}

/// What the ranks of one job print.
fn job(options: &Options, ranks: u32, part: rank::Part) -> Result<Vec<Value>> {
    let mut command = command(options, ranks, part)?;
    let output = command.stdin(Stdio::null()).output().map_err(|error| {
        Failure::run(format!("cannot start {}: {error}", launch::launcher().display()))
    })?;
    let lines = read(&output)?;
    if lines.len() == ranks as usize && (output.status.success() || part == rank::Part::Death) {
        return Ok(lines);
    }
    Err(Failure::run(format!(
        "a job of {ranks} ranks failed ({}), {} of its ranks told their figures:\n{}",
        output.status,
        lines.len(),
        String::from_utf8_lossy(&output.stderr).trim_end()
    )))
}

fn read(output: &Output) -> Result<Vec<Value>> {
    let text = String::from_utf8_lossy(&output.stdout);
    let parsed = text.lines().map(|line| {
        serde_json::from_str(line)
            .map_err(|error| Failure::run(format!("a rank printed {line:?}: {error}")))
    });
    parsed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_runs_here_on_the_cores_that_were_asked_for() {
        let options = Options {
            ranks: vec![2],
            transport: None,
            bind: Some(Bind::Numa),
            jobs: 1,
            json: false,
            part: None,
        };
        for (part, ends) in [(rank::Part::Steps, true), (rank::Part::Death, false)] {
            let command = command(&options, 2, part).expect("a command");
            let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
            let has = |word: &str| words.iter().any(|known| known == word);
            assert!(has("--here") && words.join(" ").contains("--bind numa"), "{words:?}");
            assert_eq!(has("--kill-on-failure"), ends, "{words:?}");
        }
    }

    #[test]
    fn figures_of_ranks_become_one() {
        let figures = [1.0, 4.0, 1.0];
        assert_eq!([Of::Slowest, Of::Most, Of::Mean].map(|of| of.ranks(&figures)), [4.0, 4.0, 2.0]);
    }

    #[test]
    fn figures_have_their_units() {
        assert_eq!(
            [7.25, 7250.0, 7.25e6].map(|us| Unit::Us.text(us)),
            ["7.25 us", "7.25 ms", "7.25 s"]
        );
        assert_eq!(Unit::Bytes.text(1.5 * 1048576.0), "1.50 MiB");
        assert_eq!(Unit::Count.text(24.0), "24");
    }

    #[test]
    fn the_last_rank_that_knows_of_a_death_counts() {
        let lines =
            [json!({"known_us": 25.0}), json!({"killed_us": 10.0}), json!({"known_us": 35.5})];
        assert_eq!(death_known_us(&lines), Ok(25.5));
        assert!(death_known_us(&lines[..1]).is_err(), "no rank was killed");
        assert!(death_known_us(&lines[1..2]).is_err(), "nobody knew");
        let silent = [lines[0].clone(), lines[1].clone(), json!({})];
        assert!(death_known_us(&silent).is_err(), "one said nothing");
    }
}
