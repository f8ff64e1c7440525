//! The stages of `cargo xtask test`, from quick to slow, each with its budget on two cores.

use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::machine::Tool;
use crate::process::{End, guarded};
use crate::{
    Result, build, delays, fuzzed, headers, install, lint, machine, man, package, sshd, symbols,
    workspace,
};

/// Tests of a stage.
#[derive(Clone, Copy, Default)]
pub(crate) struct Count {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
}

impl Count {
    const ONE: Count = Count { passed: 1, failed: 0 };
}

/// What a stage is told.
pub(crate) struct Context {
    /// More seeds, sizes and ranks.
    pub(crate) full: bool,
    /// What is missing may be installed.
    pub(crate) install: bool,
    /// After this a stage hangs.
    pub(crate) limit: Duration,
}

/// One stage.
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    budget_s: u64,
    /// The same in the full tier.
    full_budget_s: u64,
    pub(crate) needs: &'static [Tool],
    pub(crate) full_only: bool,
    /// Why it cannot run on this machine, if it cannot and that is all right.
    pub(crate) not_here: Option<fn() -> Option<String>>,
    pub(crate) run: fn(&Context) -> Result<Count>,
}

const fn stage(
    name: &'static str,
    budget_s: u64,
    needs: &'static [Tool],
    run: fn(&Context) -> Result<Count>,
    about: &'static str,
) -> Stage {
    let full_budget_s = budget_s;
    Stage { name, about, budget_s, full_budget_s, needs, full_only: false, not_here: None, run }
}

impl Stage {
    /// The seconds that it should take at most.
    pub(crate) fn budget_s(&self, full: bool) -> u64 {
        if full { self.full_budget_s } else { self.budget_s }
    }

    /// A stage that does more in the full tier.
    const fn in_full(self, full_budget_s: u64) -> Stage {
        Stage { full_budget_s, ..self }
    }

    /// A stage of the full tier only.
    const fn only_in_full(self) -> Stage {
        Stage { full_only: true, ..self }
    }

    const fn unless(self, not_here: fn() -> Option<String>) -> Stage {
        Stage { not_here: Some(not_here), ..self }
    }
}

pub(crate) const STAGES: [Stage; 30] = [
    stage("fmt", 10, &[], |_| lint::format_check().map(|()| Count::ONE), "formatting"),
    stage("rules", 5, &[], |_| lint::rules().map(|()| Count::ONE), "house rules"),
    stage("clippy", 120, &[], |_| lint::clippy().map(|()| Count::ONE), "clippy"),
    stage(
        "build",
        240,
        &[Tool::Cc],
        |_| built().map(|()| Count::ONE),
        "release build of the library and the tools",
    ),
    stage(
        "headers",
        20,
        &[Tool::Cc, Tool::Cxx],
        |_| headers::check(),
        "headers in C99, C11, C++17",
    ),
    stage(
        "symbols",
        5,
        &[Tool::Binutils],
        |_| built().and_then(|()| symbols::check()),
        "what libgaspi.so exports",
    ),
    stage("man", 5, &[], |_| man::check(), "what the manual pages have to tell"),
    stage(
        "core",
        120,
        &[],
        core,
        "gaspi-core: unit, property and conformance tests, ranks as threads",
    )
    .in_full(900),
    stage("tcp", 240, &[], tcp, "conformance and collectives over TCP, and over mixed links"),
    stage("fuzz", 120, &[], fuzz, "a million mutated messages and handshakes of each kind"),
    stage("unit", 150, &[Tool::Cc, Tool::Kill], unit, "the same of the other crates"),
    stage("doc", 90, &[], doc, "examples in the documentation"),
    stage("loom", 180, &[], loom, "all interleavings of the lock-free pieces"),
    stage(
        "c",
        150,
        &[Tool::Cc, Tool::Cxx],
        |context| harness(context, "c_programs", &[]),
        "C and C++ programs",
    ),
    stage(
        "fortran",
        40,
        &[Tool::Fortran],
        |context| harness(context, "fortran", &[]),
        "Fortran programs",
    ),
    stage(
        "installed",
        90,
        &[
            Tool::Cc,
            Tool::Cxx,
            Tool::Fortran,
            Tool::Binutils,
            Tool::PkgConfig,
            Tool::Cmake,
            Tool::Make,
            Tool::Dpkg,
        ],
        installed,
        "the installed tree and the package: C, C++, Fortran, CMake, static, old names",
    ),
    stage("jobs", 60, &[], jobs, "jobs beside each other; what ranks tell at their end"),
    stage(
        "bench",
        120,
        &[],
        |context| harness(context, "bench", &[]),
        "rows and tables of gaspi-bench",
    ),
    stage("faults", 120, &[], faults, "kill -9, SIGSTOP, and too few descriptors").in_full(600),
    stage(
        "soak",
        120,
        &[Tool::Cc],
        |context| harness(context, "soak", &[]),
        "C programs that do everything at random while a rank dies, stops or loses a connection",
    )
    .in_full(2400),
    stage(
        "hosts",
        300,
        &[Tool::Ip, Tool::Nft, Tool::Ssh, Tool::Kill, Tool::Dpkg],
        hosts,
        "several hosts, as network namespaces with ssh servers",
    )
    .in_full(1800),
    stage(
        "leftovers",
        30,
        &[],
        |context| harness(context, "leftovers", &[]),
        "nothing is left after any end of a job",
    ),
    stage(
        "valgrind",
        180,
        &[Tool::Cc, Tool::Valgrind],
        |context| harness(context, "valgrind", &[]),
        "C programs under valgrind",
    )
    .in_full(600),
    stage(
        "instructions",
        60,
        &[Tool::Cc, Tool::Valgrind],
        |context| harness(context, "instructions", &[]),
        "instructions of the fast paths against the committed figures",
    )
    .unless(without_figures),
    stage("aarch64", 60, &[], aarch64, "the libraries for 64-bit Arm, checked only")
        .unless(without_aarch64),
    stage(
        "delays",
        900,
        &[Tool::Cc],
        delays::run,
        "conformance and collectives over TCP with threads that are delayed at random",
    )
    .only_in_full(),
    stage("product", 180, &[], product, "operations x algorithms x types, over every kind of link")
        .only_in_full(),
    stage(
        "proofs-full",
        1800,
        &[],
        proofs,
        "proofs of the algorithms for 1..=257, 1000, 1024 members",
    )
    .only_in_full(),
    stage(
        "cargo-fuzz",
        600,
        &[Tool::Cxx],
        fuzzed::targets,
        "a minute of cargo-fuzz for each decoder of what comes from outside",
    )
    .only_in_full(),
    stage(
        "loom-full",
        600,
        &[],
        loom_full,
        "loom without a bound on preemptions, or with a higher one",
    )
    .only_in_full(),
];

/// Runs `cargo` and sums what its test programs report.
pub(crate) fn cargo_test(context: &Context, command: &mut Command) -> Result<Count> {
    let mut count = Count::default();
    let end = guarded(command, context.limit, |line| {
        let found = line.strip_prefix("test result: ").map(result_line);
        if let Some(found) = found {
            count.passed += found.passed;
            count.failed += found.failed;
        }
    })?;
    match end {
        End::Failure(reason) if count.failed == 0 => Err(reason),
        _ if count.passed + count.failed == 0 => Err("no test ran".into()),
        _ => Ok(count),
    }
}

/// `ok. 12 passed; 0 failed; 1 ignored; ...`
fn result_line(line: &str) -> Count {
    let number = |word: &str| {
        let mut before = "";
        for part in line.split([' ', ';']).filter(|part| !part.is_empty()) {
            if part == word {
                return before.parse().unwrap_or(0);
            }
            before = part;
        }
        0
    };
    Count { passed: number("passed"), failed: number("failed") }
}

/// What only gaspi-core's own stages run.
fn core(context: &Context) -> Result<Count> {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--quiet", "-p", "gaspi-core", "--no-fail-fast", "--lib"]);
    if context.full {
        cargo.env("GASPI_TEST_FULL", "1");
    }
    for name in workspace::test_programs("gaspi-core")? {
        if name != LOOM {
            cargo.args(["--test", &name]);
        }
    }
    cargo_test(context, &mut cargo)
}

/// The same suite, and that of the collective operations, with the ranks spread over nodes: each on
/// its own, and in pairs.
fn tcp(context: &Context) -> Result<Count> {
    let mut count = Count { passed: 0, failed: 0 };
    for nodes in ["each", "pairs"] {
        let mut cargo = workspace::cargo();
        cargo.args(["test", "--quiet", "-p", "gaspi-core", "-p", "gaspi-collectives"]);
        cargo.args(["--no-fail-fast", "--test", "conformance"]);
        cargo.args(["--test", "operations", "--test", "standard", "--test", "trouble"]);
        cargo.env("GASPI_TEST_NODES", nodes);
        let part = cargo_test(context, &mut cargo)?;
        count = Count { passed: count.passed + part.passed, failed: count.failed + part.failed };
    }
    Ok(count)
}

/// The decoders of what comes from outside, in a release build.
fn fuzz(context: &Context) -> Result<Count> {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--quiet", "--profile", "fuzz", "-p", "gaspi-core", "-p", "gaspi-tools"]);
    cargo.args(["--lib", "--bin", "gaspi_run", "mutated_"]);
    cargo_test(context, &mut cargo)
}

/// The proofs of the collective algorithms for more members, in a release build.
fn proofs(context: &Context) -> Result<Count> {
    let mut cargo = workspace::cargo();
    cargo.env("GASPI_TEST_FULL", "1");
    cargo.args(["test", "--quiet", "--profile", "fuzz", "-p", "gaspi-collectives", "--lib"]);
    cargo.arg("proof::");
    cargo_test(context, &mut cargo)
}

/// All cases of the test that otherwise draws some, in a release build, with the ranks on one node,
/// each on its own, and in pairs.
fn product(context: &Context) -> Result<Count> {
    let mut count = Count::default();
    for nodes in ["one", "each", "pairs"] {
        let mut cargo = workspace::cargo();
        cargo.env("GASPI_TEST_FULL", "1").env("GASPI_TEST_NODES", nodes);
        cargo.args(["test", "--quiet", "--profile", "fuzz", "-p", "gaspi-collectives"]);
        cargo.args(["--test", "operations", "product::"]);
        let part = cargo_test(context, &mut cargo)?;
        count = Count { passed: count.passed + part.passed, failed: count.failed + part.failed };
    }
    Ok(count)
}

fn unit(context: &Context) -> Result<Count> {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--quiet", "--no-fail-fast", "--workspace"]);
    cargo.args(["--exclude", "gaspi-core", "--exclude", "gaspi-tests"]);
    cargo.args(["--lib", "--bins", "--tests"]);
    cargo_test(context, &mut cargo)
}

fn doc(context: &Context) -> Result<Count> {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--quiet", "--doc", "--no-fail-fast"]);
    cargo.args(["-p", "gaspi-core", "-p", "gaspi-collectives", "-p", "gaspi"]);
    cargo_test(context, &mut cargo)
}

/// The test program of gaspi-core that holds the loom models.
const LOOM: &str = "loom";

fn loom(context: &Context) -> Result<Count> {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--quiet", "-p", "gaspi-core", "--test", LOOM]);
    cargo_test(context, &mut cargo)
}

/// The models that do not come to their end without a bound on preemptions.
const ENDLESS: [&str; 2] = ["eventcount", "passive"];
/// The bound that they get: each preemption more takes five times as long.
const THEIR_BOUND: &str = "5";

/// All interleavings of whatever number of preemptions, but for the models for which that takes
/// days.
fn loom_full(context: &Context) -> Result<Count> {
    let of = |bound: &str, arguments: &mut dyn Iterator<Item = &str>| {
        let mut cargo = workspace::cargo();
        cargo.env("LOOM_MAX_PREEMPTIONS", bound);
        cargo.args(["test", "--quiet", "-p", "gaspi-core", "--test", LOOM, "--", "--exact"]);
        cargo_test(context, cargo.args(arguments))
    };
    let unbounded = of("0", &mut ENDLESS.into_iter().flat_map(|model| ["--skip", model]))?;
    let bounded = of(THEIR_BOUND, &mut ENDLESS.into_iter())?;
    let (passed, failed) = (unbounded.passed + bounded.passed, unbounded.failed + bounded.failed);
    Ok(Count { passed, failed })
}

/// Makes the release build once per run: stages test it as it is now, `--only` included.
fn built() -> Result<()> {
    static BUILT: OnceLock<Result<()>> = OnceLock::new();
    BUILT.get_or_init(build::release).clone()
}

/// Runs one test program of the `tests` package against the release build.
fn harness(context: &Context, name: &str, variables: &[(&str, String)]) -> Result<Count> {
    built()?;
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--quiet", "-p", "gaspi-tests", "--test", name]);
    cargo.env("GASPI_TEST_BUILD", workspace::release());
    if context.full {
        cargo.env("GASPI_TEST_FULL", "1");
    }
    cargo.envs(variables.iter().map(|(name, value)| (name, value)));
    cargo_test(context, &mut cargo)
}

fn faults(context: &Context) -> Result<Count> {
    let (killed, lacking) =
        (harness(context, "faults", &[])?, harness(context, "descriptors", &[])?);
    let (passed, failed) = (killed.passed + lacking.passed, killed.failed + lacking.failed);
    Ok(Count { passed, failed })
}

fn jobs(context: &Context) -> Result<Count> {
    let (beside, told) = (harness(context, "two_jobs", &[])?, harness(context, "statistics", &[])?);
    let (passed, failed) = (beside.passed + told.passed, beside.failed + told.failed);
    Ok(Count { passed, failed })
}

fn installed(context: &Context) -> Result<Count> {
    built()?;
    let destdir = workspace::scratch("destdir");
    let place = install::Place {
        prefix: std::path::PathBuf::from("/opt/gaspi"),
        destdir: destdir.clone(),
        libdir: None,
    };
    let tree = install::install(&place)?;
    let package = package::package(&workspace::target().join("debian"))?;
    let xtask = std::env::current_exe().map_err(|error| format!("who am I: {error}"))?;
    let variables = [
        ("GASPI_TEST_TREE", tree.display().to_string()),
        ("GASPI_TEST_DESTDIR", destdir.display().to_string()),
        ("GASPI_TEST_PACKAGE", package.display().to_string()),
        ("GASPI_TEST_XTASK", xtask.display().to_string()),
    ];
    harness(context, "installed", &variables)
}

fn hosts(context: &Context) -> Result<Count> {
    let server = sshd::provide()?;
    let variables: Vec<(&str, String)> = server
        .iter()
        .map(|directory| ("GASPI_TEST_SSHD", directory.display().to_string()))
        .collect();
    harness(context, "hosts", &variables)
}

fn without_figures() -> Option<String> {
    (!cfg!(target_arch = "x86_64")).then(|| "the committed figures are of x86-64".to_owned())
}

fn without_aarch64() -> Option<String> {
    let remedy = "rustup target add aarch64-unknown-linux-gnu";
    (!machine::has_aarch64()).then(|| format!("no Rust standard library for it; {remedy}"))
}

fn aarch64(_: &Context) -> Result<Count> {
    let mut cargo = workspace::cargo();
    cargo.args(["check", "--quiet", "--target", "aarch64-unknown-linux-gnu"]);
    cargo.args(["-p", "gaspi-core", "-p", "gaspi-collectives", "-p", "gaspi", "-p", "gaspi-tools"]);
    crate::process::run(&mut cargo).map(|()| Count::ONE)
}

#[cfg(test)]
mod tests {
    use super::result_line;

    #[test]
    fn counts_are_read_from_result_lines() {
        let count = result_line("FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered");
        assert_eq!((count.passed, count.failed), (12, 3));
    }
}
