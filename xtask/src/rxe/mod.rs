//! `cargo xtask rxe`: tests of verbs without a card. Guests in emulation have Linux's soft-RoCE
//! driver (rxe); the release build of this machine runs there beside perftest.
//!
//! Nothing is installed. All that is downloaded and made is below the target directory.

mod archive;
mod checks;
mod figures;
mod guest;
mod initramfs;
mod modules;
mod packages;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use checks::{CHECKS, Check, Report};
use figures::Figure;
use guest::{Guest, Place};
use packages::Packages;

use crate::suite::{Context, Count};
use crate::{Result, build, process, unknown, workspace};

/// A guest is up after 7 to 14 s.
const BOOT_S: u64 = 90;
/// The directory of a run, with its process behind it.
const RUNS: &str = "rxe";
/// What plays failures between the library and a device.
const FAULTY_VERBS: &str = "gaspi-faulty-verbs";
/// A guest ends by itself after this, whatever becomes of xtask.
const GUEST_S: u64 = 900;
const GUEST_FULL_S: u64 = 5400;

#[derive(Default)]
struct Options {
    /// A card of this machine, instead of guests.
    device: Option<String>,
    /// With checks of the full tier.
    full: bool,
    /// Parts of the names of checks; empty for all.
    filters: Vec<String>,
}

pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let mut options = Options::default();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--device" => {
                options.device = Some(rest.next().ok_or("--device needs a card")?.clone());
            }
            "--list" => {
                for check in &CHECKS {
                    let outside = if check.outside { "  (--device)" } else { "" };
                    let full = if check.full_only { "  (--full)" } else { "" };
                    println!("{}{outside}{full}", check.name);
                }
                return Ok(());
            }
            "--full" => options.full = true,
            "--" => options.filters.extend(rest.by_ref().cloned()),
            _ if argument.starts_with('-') => return Err(unknown(argument)),
            _ => options.filters.push(argument.clone()),
        }
    }
    if let Some(device) = &options.device {
        find_card(device)?;
    }
    build::release()?;
    let count = run_checks(&options)?;
    println!("\n{} passed, {} failed", count.passed, count.failed);
    match count {
        Count { passed: 0, failed: 0 } => Err("no check has such a name; --list shows all".into()),
        Count { failed: 0, .. } => Ok(()),
        _ => Err(String::new()),
    }
}

/// Fails unless this machine has the card, and tells which ones it has.
fn find_card(device: &str) -> Result<()> {
    const CARDS: &str = "/sys/class/infiniband";
    let cards = workspace::entries(Path::new(CARDS)).unwrap_or_default();
    let name = |card: &PathBuf| card.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let names: Vec<String> = cards.iter().map(name).collect();
    match names.iter().any(|name| name == device) {
        true => Ok(()),
        false if names.is_empty() => {
            Err(format!("this machine has no RDMA card: {CARDS} is empty or not there"))
        }
        false => Err(format!("this machine has no card {device}; there are: {}", names.join(", "))),
    }
}

/// The stage of `cargo xtask test`, after the release build.
pub(crate) fn stage(context: &Context) -> Result<Count> {
    let Context { full, filters, .. } = context;
    run_checks(&Options { device: None, full: *full, filters: filters.clone() })
}

fn run_checks(options: &Options) -> Result<Count> {
    process::run(workspace::cargo().args(["build", "--release", "-p", FAULTY_VERBS]))?;
    remove_leftovers()?;
    let directory = workspace::scratch_of_process(RUNS)?;
    let result = run_in(options, &directory);
    workspace::remove(&directory)?;
    result
}

/// Removes the directories of runs that were killed. Their guests have ended with them.
fn remove_leftovers() -> Result<()> {
    let Ok(entries) = workspace::entries(&workspace::scratch("")) else { return Ok(()) };
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let of_run = name.strip_prefix(RUNS).and_then(|rest| rest.strip_prefix('-'));
        if let Some(Ok(pid)) = of_run.map(str::parse::<u32>)
            && !Path::new("/proc").join(pid.to_string()).exists()
        {
            workspace::remove(&path)?;
        }
    }
    Ok(())
}

/// Runs the chosen checks with `directory` for all that they leave.
fn run_in(options: &Options, directory: &Path) -> Result<Count> {
    let programs = directory.join(guest::PROGRAMS);
    compile(&programs)?;
    let chosen = CHECKS.iter().filter(|check| is_chosen(check, options));
    let mut tests: Vec<_> = chosen.flat_map(|check| check.tests).collect();
    tests.dedup();
    let copies = tests.into_iter().map(|test| copy_test(*test, &programs));
    let tests = copies.collect::<Result<Vec<PathBuf>>>()?;
    let mut results = Results::default();
    if let Some(device) = &options.device {
        for check in CHECKS.iter().filter(|check| check.outside && is_chosen(check, options)) {
            let start = Instant::now();
            let report = checks::run_outside(check, device, &programs)?;
            results.add(check, start.elapsed(), report);
        }
    } else {
        let packages = Packages::provide()?;
        let initramfs = directory.join("initramfs");
        let names = build::tools().into_iter().chain(["libgaspi.so", "libgaspi_faulty_verbs.so"]);
        let mut others: Vec<PathBuf> = names.map(|name| workspace::release().join(name)).collect();
        others.extend(tests);
        initramfs::make(&packages, &others, &initramfs)?;
        let guest_s = if options.full { GUEST_FULL_S } else { GUEST_S };
        for guests in [1, 2] {
            let of_kind = |check: &&Check| check.guests == guests;
            if !CHECKS.iter().filter(of_kind).any(|check| is_chosen(check, options)) {
                continue;
            }
            let place = Place {
                packages: &packages,
                initramfs: &initramfs,
                directory,
                guests,
                limit: Duration::from_secs(guest_s).mul_f64(checks::time_scale()),
            };
            in_guests(&place, options, &mut results)?;
        }
    }
    if !results.figures.is_empty() {
        println!("\n{}", figures::table(&results.figures));
    }
    Ok(results.count)
}

/// Starts guests and runs the chosen checks in them. The first check is always run: it makes the
/// cards that the others use.
fn in_guests(place: &Place, options: &Options, results: &mut Results) -> Result<()> {
    let start = Instant::now();
    let mut guests: Vec<Guest> = Vec::new();
    for number in 0..place.guests {
        if number > 0 {
            guest::wait_for_wire(place)?;
        }
        guests.push(Guest::start(place, number)?);
    }
    let limit = Duration::from_secs(BOOT_S).mul_f64(checks::time_scale());
    let up = guests.iter_mut().try_for_each(|guest| guest.wait_until_up(limit));
    if let Err(reason) = up {
        show_consoles(&guests);
        return Err(reason);
    }
    println!("{} guests are up after {:.1} s", place.guests, start.elapsed().as_secs_f64());
    let here = CHECKS.iter().filter(|check| check.guests == place.guests);
    for (number, check) in (0..).zip(here) {
        if number > 0 && !is_chosen(check, options) {
            continue;
        }
        let start = Instant::now();
        let report = checks::run(check, number, &mut guests)
            .unwrap_or_else(|reason| Report { failure: Some(reason), ..Report::default() });
        let is_hopeless = report.failure.is_some() && number == 0;
        if !results.add(check, start.elapsed(), report) {
            show_consoles(&guests);
        }
        if is_hopeless {
            break;
        }
    }
    Ok(())
}

fn is_chosen(check: &Check, options: &Options) -> bool {
    (options.full || !check.full_only)
        && (options.filters.is_empty()
            || options.filters.iter().any(|part| check.name.contains(part)))
}

fn show_consoles(guests: &[Guest]) {
    for (number, guest) in guests.iter().enumerate() {
        println!("---- console of guest {number}\n{}\n----", guest.console());
    }
}

#[derive(Default)]
struct Results {
    count: Count,
    figures: Vec<Figure>,
}

impl Results {
    /// Prints the result of a check as tests print theirs; true if it holds.
    fn add(&mut self, check: &Check, took: Duration, report: Report) -> bool {
        let world = check.name.split('/').next().unwrap_or_default();
        self.figures.extend(
            report
                .figures
                .into_iter()
                .map(|figure| Figure { what: format!("{world}/{}", figure.what), ..figure }),
        );
        let word = if report.failure.is_none() { "ok" } else { "FAILED" };
        println!("test {} ... {word} ({:.1} s)", check.name, took.as_secs_f64());
        match report.failure {
            None => self.count.passed += 1,
            Some(reason) => {
                self.count.failed += 1;
                println!("{}{}: {reason}", report.output, check.name);
                return false;
            }
        }
        if std::env::var_os("GASPI_TEST_SHOW").is_some() {
            println!("{}", report.output);
        }
        true
    }
}

/// Compiles the C programs that checks run. They find the library by LD_LIBRARY_PATH.
fn compile(to: &Path) -> Result<()> {
    workspace::make_directory(to)?;
    let root = workspace::root();
    for source in checks::PROGRAMS {
        let source = root.join(source);
        let program = to.join(source.file_stem().unwrap_or_default());
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]);
        compiler.arg("-I").arg(root.join("include")).arg(&source);
        compiler.arg("-L").arg(workspace::release()).args(["-lgaspi", "-o"]).arg(&program);
        process::run(&mut compiler)?;
    }
    Ok(())
}

/// Builds a test program and copies it to a directory; where it lies there.
fn copy_test([package, name]: [&str; 2], to: &Path) -> Result<PathBuf> {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--quiet", "-p", package, "--test", name, "--no-run"]);
    let told = process::output(cargo.arg("--message-format=json"))?;
    let mark = "\"executable\":\"";
    let found =
        told.lines().filter_map(|line| line.split_once(mark)?.1.split('"').next()).next_back();
    let built = found.ok_or_else(|| format!("cargo does not say where the test {name} is"))?;
    let copy = to.join(name);
    std::fs::copy(built, &copy).map_err(|error| format!("cannot copy {built}: {error}"))?;
    Ok(copy)
}
