//! `cargo xtask test`: runs the stages of `stages.rs`, each with a budget, and prints a table.

use std::time::{Duration, Instant};

use crate::machine::Tool;
use crate::stages::{STAGES, Stage};
use crate::suite::{Context, Count, NO_TEST};
use crate::{Result, excerpt, machine, unknown, workspace};

/// A stage that takes this many times its budget, and [`BUILDING`], hangs and is killed.
const PATIENCE: u32 = 6;

/// More for what a stage builds, where it is the first to run in a fresh clone.
const BUILDING: Duration = Duration::from_secs(600);

/// Stages that are left out first where a machine is too slow for all: what they try by chance, or
/// in guests, others try elsewhere.
const YIELDING: [&str; 4] = ["twin", "fuzz", "soak", "rxe"];

/// How many seconds of budgets tell how fast the machine is.
const PACE_KNOWN_S: f64 = 300.0;

/// What became of a stage.
enum Outcome {
    Ran(Count),
    Broken(String),
    Missing(Vec<Tool>),
    NotHere(String),
    /// It would take so long here that all would take longer than was asked for.
    NoTime(Duration),
}

struct Row {
    stage: &'static Stage,
    took: Duration,
    outcome: Outcome,
    /// What commands printed that failed.
    excerpt: Vec<String>,
}

#[derive(Default)]
struct Options {
    full: bool,
    install: bool,
    skip_missing: bool,
    only: Vec<String>,
    /// How long all may take: a slow machine leaves stages out.
    within: Option<Duration>,
    /// What follows `--`: filters for the names of tests.
    filters: Vec<String>,
}

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let Some(options) = options(arguments)? else { return Ok(()) };
    if options.only.is_empty() {
        machine::check_room()?;
    }
    let start = Instant::now();
    let missing = provide(&options)?;
    let is_chosen = |stage: &&'static Stage| {
        let named = options.only.is_empty() || options.only.iter().any(|name| name == stage.name);
        named && (!stage.full_only || options.full)
    };
    let stages: Vec<&'static Stage> = STAGES.iter().filter(is_chosen).collect();
    let mut rows = Vec::new();
    for (number, stage) in stages.iter().enumerate() {
        let row = match lacks_time(&stages[number..], &rows, start.elapsed(), &options) {
            Some(outcome) => Row { stage, took: Duration::ZERO, outcome, excerpt: Vec::new() },
            None => run_stage(stage, &options, &missing),
        };
        rows.push(row);
    }
    report(&rows, &missing, &options)
}

/// Whether the first of the stages that are left is left out for lack of time, at the pace of those
/// that have run: if it takes too long itself, or if it is one of those that go first where not all
/// that are left have time.
fn lacks_time(
    left: &[&'static Stage],
    rows: &[Row],
    spent: Duration,
    options: &Options,
) -> Option<Outcome> {
    let within = options.within?;
    let budget_s = |stage: &Stage| stage.budget_s(options.full) as f64;
    let ran = rows.iter().filter(|row| !row.took.is_zero());
    let budgets_s: f64 = ran.map(|row| budget_s(row.stage)).sum();
    // Budgets are upper limits.
    let pace = if budgets_s < PACE_KNOWN_S { 1.0 } else { spent.as_secs_f64() / budgets_s };
    let expected = |stages: &[&Stage]| {
        let all_s: f64 = stages.iter().map(|stage| budget_s(stage)).sum();
        Duration::from_secs_f64(all_s * pace)
    };
    let first = left.first()?;
    let itself = expected(&left[..1]);
    let lacks = spent + itself > within
        || YIELDING.contains(&first.name) && spent + expected(left) > within;
    lacks.then_some(Outcome::NoTime(itself))
}

fn options(arguments: &[String]) -> Result<Option<Options>> {
    let mut options = Options::default();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--full" => options.full = true,
            "--install" => options.install = true,
            "--skip-missing" => options.skip_missing = true,
            "--within" => {
                let minutes = rest.next().and_then(|text| text.parse().ok());
                let minutes: u64 = minutes.ok_or("--within needs a number of minutes")?;
                options.within = Some(Duration::from_secs(60 * minutes));
            }
            "--only" => {
                let names = rest.next().ok_or("--only needs stages, separated by commas")?;
                options.only = names.split(',').map(str::to_owned).collect();
            }
            "--list" => {
                for stage in &STAGES {
                    let (few, many) = (stage.budget_s(false), stage.budget_s(true));
                    let few = if stage.full_only { "-".to_owned() } else { few.to_string() };
                    println!("{:<12} {few:>4} {many:>5} s  {}", stage.name, stage.about);
                }
                return Ok(None);
            }
            "--" => options.filters = rest.by_ref().cloned().collect(),
            _ => return Err(unknown(argument)),
        }
    }
    if !options.filters.is_empty() && options.only.is_empty() {
        return Err("names of tests behind -- need --only STAGE before it".into());
    }
    for name in &options.only {
        if !STAGES.iter().any(|stage| stage.name == name) {
            return Err(format!("there is no stage {name:?}; --list shows them"));
        }
    }
    Ok(Some(options))
}

/// Installs what is missing where that is wanted; otherwise says what will not run. Returns what is
/// still missing.
fn provide(options: &Options) -> Result<Vec<Tool>> {
    let missing = machine::missing();
    if missing.is_empty() {
        return Ok(missing);
    }
    if options.install || workspace::is_ci() {
        if let Err(reason) = machine::install(&missing) {
            println!("installing failed: {reason}");
        }
        return Ok(machine::missing());
    }
    println!("some programs are missing; as root (or with --install):\n");
    println!("    {}\n", machine::apt_line(&missing));
    for stage in &STAGES {
        let lacks = lacks(stage, &missing);
        if !lacks.is_empty() {
            let packages = machine::packages(&lacks, ", ");
            println!("without {packages} the stage {} cannot run", stage.name);
        }
    }
    if missing.contains(&Tool::Gdb) {
        println!("without gdb the watchdog of a hung test shows kernel states only, no stacks");
    }
    Ok(missing)
}

/// What is missing of the programs that a stage needs.
fn lacks(stage: &Stage, missing: &[Tool]) -> Vec<Tool> {
    stage.needs.iter().copied().filter(|tool| missing.contains(tool)).collect()
}

fn run_stage(stage: &'static Stage, options: &Options, missing: &[Tool]) -> Row {
    println!("\n== {}: {}", stage.name, stage.about);
    let start = Instant::now();
    let lacks = lacks(stage, missing);
    let budget = Duration::from_secs(stage.budget_s(options.full));
    let install = options.install || workspace::is_ci();
    let filters = options.filters.clone();
    let limit = budget * PATIENCE + BUILDING;
    let context = Context { full: options.full, install, limit, filters };
    let outcome = if !lacks.is_empty() {
        Outcome::Missing(lacks)
    } else if let Some(reason) = stage.not_here.and_then(|ask| ask()) {
        Outcome::NotHere(reason)
    } else {
        match (stage.run)(&context) {
            Ok(count) if count.passed + count.failed == 0 => Outcome::Broken(NO_TEST.into()),
            Ok(count) => Outcome::Ran(count),
            Err(reason) => Outcome::Broken(reason),
        }
    };
    if let Outcome::Broken(reason) = &outcome {
        println!("{}: {reason}", stage.name);
    }
    let took = start.elapsed();
    if took > budget {
        let (took, budget) = (took.as_secs_f64(), budget.as_secs());
        println!("WARNING: {} took {took:.0} s, its budget is {budget} s", stage.name);
    }
    Row { stage, took, outcome, excerpt: excerpt::take() }
}

fn report(rows: &[Row], missing: &[Tool], options: &Options) -> Result<()> {
    println!("\n{:<12} {:>8} {:>8}  result", "stage", "seconds", "budget");
    let mut total = Count::default();
    let mut unable = 0;
    let mut late = Vec::new();
    for Row { stage, took, outcome, .. } in rows {
        let result = match outcome {
            Outcome::Ran(count) => {
                total = total + *count;
                format!("{} passed, {} failed", count.passed, count.failed)
            }
            Outcome::Broken(reason) => {
                total.failed += 1;
                format!("FAILED: {}", reason.lines().next().unwrap_or_default())
            }
            Outcome::Missing(tools) => {
                unable += 1;
                format!("DID NOT RUN: {} is missing", machine::packages(tools, ", "))
            }
            Outcome::NotHere(reason) => format!("not run: {reason}"),
            Outcome::NoTime(expected) => {
                late.push(stage.name);
                format!("DID NOT RUN: no time for another {} s", expected.as_secs())
            }
        };
        let (name, budget) = (stage.name, stage.budget_s(options.full));
        let over = if took.as_secs() > budget { "  OVER BUDGET" } else { "" };
        println!("{name:<12} {:>8.1} {budget:>8}  {result}{over}", took.as_secs_f64());
    }
    let took: Duration = rows.iter().map(|row| row.took).sum();
    println!("{:<12} {:>8.1}", "total", took.as_secs_f64());
    if unable > 0 {
        let stages = if unable == 1 { "stage" } else { "stages" };
        println!("\n{unable} {stages} did not run: {}", machine::apt_line(missing));
        if !options.skip_missing {
            // Never green without having run.
            total.failed += unable;
        }
    }
    if !late.is_empty() {
        println!(
            "\nThis machine is slow, and --within left out what did not fit; run it by cargo xtask \
             test --only {}",
            late.join(",")
        );
    }
    for row in rows.iter().filter(|row| !row.excerpt.is_empty()) {
        println!("\n{}, why it failed:", row.stage.name);
        for line in &row.excerpt {
            println!("    {line}");
        }
    }
    println!("\n{} passed, {} failed", total.passed, total.failed);
    // The line above is the last one; the exit status says the rest.
    if total.failed == 0 { Ok(()) } else { Err(String::new()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(names: &[&str]) -> Vec<&'static Stage> {
        let find = |name: &&str| STAGES.iter().find(|stage| stage.name == *name).expect("a stage");
        names.iter().map(find).collect()
    }

    #[test]
    fn a_slow_machine_leaves_out_what_does_not_fit() {
        let rows = |pace: f64| -> Vec<Row> {
            let row = |stage: &'static Stage| {
                let took = Duration::from_secs_f64(stage.budget_s(false) as f64 * pace);
                Row { stage, took, outcome: Outcome::Broken(String::new()), excerpt: Vec::new() }
            };
            stages(&["core", "tcp"]).into_iter().map(row).collect()
        };
        let spent = |rows: &[Row]| -> Duration { rows.iter().map(|row| row.took).sum() };
        let lacks = |pace: f64, left: &[&str], minutes: u64| {
            let within = Some(Duration::from_secs(60 * minutes));
            let (options, rows) = (Options { within, ..Options::default() }, rows(pace));
            lacks_time(&stages(left), &rows, spent(&rows), &options).is_some()
        };
        // 520 s of budgets have run; these are 135, 405 and 600 s more.
        let left = ["fuzz", "unit", "training"];
        assert!(!lacks(1.0, &left, 28) && lacks(1.0, &left, 27), "fuzz goes for those behind it");
        assert!(!lacks(1.0, &left[1..], 27) && !lacks(1.0, &left[1..], 16));
        assert!(lacks(1.0, &left[1..], 15), "it takes too long itself");
        assert!(!lacks(0.5, &left, 14) && lacks(2.0, &left, 28));
        let rows = rows(9.0);
        let any = lacks_time(&stages(&left), &rows, spent(&rows), &Options::default());
        assert!(any.is_none(), "without a limit all run");
    }
}
