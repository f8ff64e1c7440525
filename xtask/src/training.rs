//! Stage `training`: the wheel, installed in environments with TensorFlow and without; unit tests,
//! jobs of several ranks, examples.
//!
//! A test is found by its name: `python/tests/unit/test_*.py` are unit tests, which need no
//! TensorFlow; `python/tests/jobs/job_*.py` hold cases that run on any number of ranks, all in one
//! process; `python/examples/*.py` take `--quick`. Words behind `--` choose: see `filter.rs`.

mod filter;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::process::{self, End, guarded};
use crate::result::Result;
use crate::suite::{Context, Count, cargo_test, result_line};
use crate::{python, sshd, wheel, workspace};
use filter::Filter;

/// An environment to test in.
struct Environment {
    name: &'static str,
    /// The Python that it takes: the first of these that there is.
    versions: &'static [&'static str],
    packages: &'static [&'static str],
    /// Numbers of ranks in the usual tier, and their jobs, or cases as `JOB.CASE`; none: not in it.
    usual: &'static [(usize, &'static [&'static str])],
    /// Numbers of ranks in the full one, which runs all jobs.
    full_ranks: &'static [usize],
    /// Tests that start jobs of their own: an option of `run_unit.py`, and parts of the names of
    /// those in the usual tier. The full one runs all of these.
    starting: &'static [(&'static str, &'static [&'static str])],
    variables: &'static [(&'static str, &'static str)],
}

const fn full_only(
    name: &'static str,
    versions: &'static [&'static str],
    packages: &'static [&'static str],
) -> Environment {
    let (usual, starting) = (&[], &[]);
    Environment { name, versions, packages, usual, full_ranks: &[2], starting, variables: &[] }
}

/// Data of the tests come from scikit-learn. The first is that of unit tests and examples.
const ENVIRONMENTS: [Environment; 11] = [
    Environment {
        name: "tf-2.21",
        versions: &["3.11"],
        packages: &["tensorflow-cpu==2.21.0", "tensorboard", "scikit-learn"],
        usual: &[
            (
                2,
                &[
                    "job_collectives",
                    "job_control",
                    "job_data",
                    "job_documentation",
                    "job_exactness",
                    "job_faults",
                    "job_interface",
                    "job_metrics",
                    "job_predict",
                    "job_settings",
                    "job_training",
                    "job_types",
                ],
            ),
            (
                3,
                &[
                    "job_data",
                    "job_exactness",
                    "job_training.sgd_with_momentum",
                    "job_training.adam",
                    "job_training.last_batch",
                    "job_training.clipping",
                    "job_loops.unbatched_datasets",
                ],
            ),
        ],
        full_ranks: &[1, 2, 3, 4],
        starting: &[("--failures", &["test_killed_rank"]), ("--runs", &["Seeds", "Bits"])],
        variables: &[],
    },
    Environment {
        name: "tf-2.15",
        versions: &["3.11"],
        packages: &["tensorflow-cpu==2.15.1", "scikit-learn"],
        usual: &[(
            2,
            &[
                "job_callbacks",
                "job_generators",
                "job_interface",
                "job_loops",
                "job_predict",
                "job_saving",
            ],
        )],
        full_ranks: &[1, 2, 3, 4],
        starting: &[
            ("--failures", &["test_killed_rank", "test_job_goes_on_without_its_master"]),
            ("--runs", &["Restarts"]),
        ],
        variables: &[],
    },
    // With the kernels of oneDNN of that release the sum over 64 samples is not that over twice 32:
    // after ten steps plain Keras differs by up to 1e-2 of the largest weight.
    Environment {
        variables: &[("TF_ENABLE_ONEDNN_OPTS", "0")],
        ..full_only(
            "tf-2.10",
            &["3.10", "3.9"],
            &["tensorflow-cpu==2.10.1", "scikit-learn", "numpy<2", "protobuf<3.20"],
        )
    },
    full_only("tf-2.12", &["3.11", "3.10"], &["tensorflow-cpu==2.12.1", "scikit-learn"]),
    full_only("tf-2.13", &["3.11", "3.10"], &["tensorflow-cpu==2.13.1", "scikit-learn"]),
    full_only("tf-2.16", &["3.12", "3.11"], &["tensorflow-cpu==2.16.2", "scikit-learn"]),
    full_only("tf-2.17", &["3.12", "3.11"], &["tensorflow-cpu==2.17.1", "scikit-learn"]),
    full_only("tf-2.18", &["3.12", "3.11"], &["tensorflow-cpu==2.18.1", "scikit-learn"]),
    full_only("tf-2.19", &["3.12", "3.11"], &["tensorflow-cpu==2.19.1", "scikit-learn"]),
    full_only("tf-2.20", &["3.13", "3.12", "3.11"], &["tensorflow-cpu==2.20.0", "scikit-learn"]),
    Environment {
        name: "tf-keras",
        versions: &["3.11"],
        packages: &["tensorflow-cpu==2.18.1", "tf_keras==2.18.0", "scikit-learn"],
        usual: &[],
        full_ranks: &[2],
        starting: &[],
        variables: &[("TF_USE_LEGACY_KERAS", "1")],
    },
];
/// Pythons in which the wheel has to work without TensorFlow: the first in the usual tier, all in
/// the full one.
const PYTHONS: [&str; 5] = ["3.11", "3.9", "3.10", "3.12", "3.13"];
/// The example that the usual tier runs.
const USUAL_EXAMPLE: &str = "lenet5_digits";
/// Has an example do little.
const QUICK: &str = "--quick";
/// Ranks of an example.
const EXAMPLE_RANKS: usize = 2;

/// The stage, and what it has found so far.
struct Training<'a> {
    context: &'a Context,
    filters: Vec<Filter>,
    wheel: PathBuf,
    count: Count,
}

/// What the command line chooses; asked before anything is built.
pub(crate) fn filters(context: &Context) -> Result<Vec<Filter>> {
    let names = ENVIRONMENTS.each_ref().map(|environment| environment.name);
    context.filters.iter().map(|word| Filter::parse(word, &names)).collect()
}

pub(crate) fn stage(context: &Context, filters: Vec<Filter>) -> Result<Count> {
    let begin = Instant::now();
    let interpreter = python::find(ENVIRONMENTS[0].versions)?;
    let wheel = wheel::build(&interpreter, &workspace::target().join("wheel"))?;
    note("the wheel", begin);
    let mut training = Training { context, filters, wheel, count: Count::default() };
    for (number, environment) in ENVIRONMENTS.iter().enumerate() {
        if training.is_chosen(environment) {
            training.test(environment, number == 0)?;
        }
    }
    training.installs()?;
    training.hosts()?;
    Ok(training.count)
}

fn note(what: &str, begin: Instant) {
    println!("training: {what}: {:.1} s", begin.elapsed().as_secs_f64());
}

impl Training<'_> {
    /// All that runs in one environment.
    fn test(&mut self, environment: &Environment, first: bool) -> Result<()> {
        let begin = Instant::now();
        // An environment that cannot be had is a failure, never left out.
        let interpreter = python::find(environment.versions)?;
        let directory = python::environment(environment.name, &interpreter, environment.packages)?;
        self.install(&directory)?;
        note(&format!("{}: environment", environment.name), begin);
        self.declarations(environment, &directory)?;
        if first {
            self.unit_tests(environment, &directory, None, &[])?;
        }
        let all = workspace::root().join("python/tests/jobs/all_jobs.py");
        for (ranks, names) in self.jobs(environment)? {
            // In one process: importing TensorFlow takes longer than many cases.
            self.job(environment, &directory, ranks, &all, &names)?;
        }
        for (option, usual) in environment.starting {
            let of_tier = if self.context.full { &[] } else { *usual };
            self.unit_tests(environment, &directory, Some(option), of_tier)?;
        }
        if first && self.context.full {
            self.bench(&directory)?;
        }
        for (ranks, example) in self.examples(environment, first)? {
            self.job(environment, &directory, ranks, &example, &[QUICK.to_owned()])?;
        }
        Ok(())
    }

    /// Whether an environment is of the tier.
    fn is_of_tier(&self, environment: &Environment) -> bool {
        self.context.full || !environment.usual.is_empty()
    }

    /// Whether anything is to run in an environment.
    fn is_chosen(&self, environment: &Environment) -> bool {
        match self.filters[..] {
            [] => self.is_of_tier(environment),
            _ => !self.filters_of(environment).is_empty(),
        }
    }

    /// The filters that choose of an environment. Those that name it do so in any tier.
    fn filters_of(&self, environment: &Environment) -> Vec<&Filter> {
        let filters = self.filters.iter();
        let taken = filters.filter(|filter| match &filter.environment {
            Some(name) => name == environment.name,
            None => self.is_of_tier(environment),
        });
        taken.collect()
    }

    /// Numbers of ranks and what they run, of the tier; an environment of the full tier runs that.
    fn of_tier(&self, environment: &Environment, all: &[String]) -> Vec<(usize, Vec<String>)> {
        if self.context.full || environment.usual.is_empty() {
            return environment.full_ranks.iter().map(|ranks| (*ranks, all.to_vec())).collect();
        }
        let usual = environment.usual.iter();
        usual
            .map(|(ranks, names)| (*ranks, names.iter().map(|name| (*name).to_owned()).collect()))
            .collect()
    }

    /// Numbers of ranks and what they run: jobs, or cases as `JOB.CASE`.
    fn jobs(&self, environment: &Environment) -> Result<Vec<(usize, Vec<String>)>> {
        let jobs: Vec<String> =
            programs("python/tests/jobs", "job_")?.iter().map(|job| stem(job)).collect();
        let table = self.of_tier(environment, &jobs);
        if self.filters.is_empty() {
            return Ok(table);
        }
        let mut chosen: Vec<(usize, Vec<String>)> = Vec::new();
        for filter in self.filters_of(environment) {
            let of_table = table.iter().map(|(ranks, _)| *ranks);
            for ranks in filter.ranks.map_or_else(|| of_table.collect(), |ranks| vec![ranks]) {
                let usual = table.iter().find(|(number, _)| *number == ranks);
                let names = match usual {
                    Some((_, names)) if filter.name.is_empty() => names.clone(),
                    _ => jobs.iter().filter_map(|job| filter.of_job(job)).collect(),
                };
                match chosen.iter_mut().find(|(number, _)| *number == ranks) {
                    Some((_, others)) => others.extend(names),
                    None => chosen.push((ranks, names)),
                }
            }
        }
        chosen.retain(|(_, names)| !names.is_empty());
        Ok(chosen)
    }

    /// Examples and their numbers of ranks. Where none is named they run in the first environment.
    fn examples(&self, environment: &Environment, first: bool) -> Result<Vec<(usize, PathBuf)>> {
        let examples = programs("python/examples", "")?;
        let of_tier =
            |example: &Path| first && (self.context.full || stem(example) == USUAL_EXAMPLE);
        let mut chosen = Vec::new();
        for example in examples {
            if self.filters.is_empty() {
                chosen.extend(of_tier(&example).then_some((EXAMPLE_RANKS, example)));
                continue;
            }
            let filters = self.filters_of(environment).into_iter();
            let mut taking = filters.filter(|filter| match filter.name.as_str() {
                "" => of_tier(&example),
                name => {
                    (first || filter.environment.is_some())
                        && (stem(&example) + ".py").contains(name)
                }
            });
            let ranks = taking.next().map(|filter| filter.ranks.unwrap_or(EXAMPLE_RANKS));
            chosen.extend(ranks.map(|ranks| (ranks, example)));
        }
        Ok(chosen)
    }

    /// Our declarations of TensorFlow's C API beside its own headers.
    fn declarations(&mut self, environment: &Environment, directory: &Path) -> Result<()> {
        let filters = self.filters_of(environment);
        if !self.filters.is_empty() && !filters.iter().any(|filter| filter.takes("declarations")) {
            return Ok(());
        }
        let mut check = Command::new("sh");
        check.arg(workspace::root().join("tarantella-tf/check_declarations.sh"));
        check.arg(directory.join("bin/python"));
        let end = guarded(&mut check, self.context.limit, |_| {})?;
        self.take(&format!("{}, declarations", environment.name), end, Count::ONE);
        Ok(())
    }

    fn install(&self, directory: &Path) -> Result<()> {
        let wheel = self.wheel.display().to_string();
        python::pip(directory, &["--force-reinstall", "--no-deps", &wheel])
    }

    /// Unit tests, or those that start jobs; of the tier these parts of names, or all.
    fn unit_tests(
        &mut self,
        environment: &Environment,
        directory: &Path,
        which: Option<&str>,
        of_tier: &[&str],
    ) -> Result<()> {
        // The runner knows the names; a filter with ranks is for jobs.
        let filters = self.filters_of(environment).into_iter();
        let names = filters.filter(|filter| filter.ranks.is_none());
        let mut names: Vec<&str> = names.map(|filter| filter.name.as_str()).collect();
        if names.is_empty() && !self.filters.is_empty() {
            return Ok(());
        }
        if names.is_empty() || names.iter().any(|name| name.is_empty()) {
            names = of_tier.to_vec();
        }
        let (mut runner, tools) =
            (Command::new(directory.join("bin/python")), directory.join("bin"));
        runner.arg(workspace::root().join("python/tests/run_unit.py")).args(which);
        runner.args(names).env("CUDA_VISIBLE_DEVICES", "-1");
        runner.env("GASPI_TOOLS", &tools).env("GASPI_RUN", tools.join("gaspi_run"));
        let mut found = Count::default();
        let end = guarded(&mut runner, self.context.limit, |line| {
            if let Some(result) = line.strip_prefix("test result: ") {
                found = found + result_line(result);
            }
        })?;
        let what = format!("{}, {}", environment.name, which.unwrap_or("unit tests"));
        self.take(&what, end, found);
        Ok(())
    }

    /// Runs a program on several ranks.
    fn job(
        &mut self,
        environment: &Environment,
        directory: &Path,
        ranks: usize,
        program: &Path,
        arguments: &[String],
    ) -> Result<()> {
        let begin = Instant::now();
        let mut command = Command::new(directory.join("bin/tarantella"));
        command.args(["-n", &ranks.to_string(), "--no-gpu", "--"]).arg(program).args(arguments);
        command.envs(environment.variables.iter().copied());
        let scratch = workspace::scratch_of_process("training")?;
        command.current_dir(&scratch);
        // A rank that waits for one that failed gives up before the stage does.
        command.env("TNT_TEST_VERBOSE", "1").env("TNT_TIMEOUT", "120");
        if self.context.full {
            command.env("GASPI_TEST_FULL", "1");
        }
        let mut found = Count::default();
        let end = guarded(&mut command, self.context.limit, |line| {
            if let Some(passed) = line.strip_suffix(" passed").and_then(|n| n.parse().ok()) {
                found = found + Count { passed, failed: 0 };
            }
        })?;
        workspace::remove(&scratch)?;
        let what = format!("{}, {ranks} ranks, {}", environment.name, stem(program));
        note(&what, begin);
        // An example says nothing of tests.
        let is_example = arguments.iter().any(|argument| argument == QUICK);
        self.take(&what, end, if is_example { Count::ONE } else { found });
        Ok(())
    }

    /// Counts what a program did; one that failed, or ran nothing, is a failure.
    fn take(&mut self, what: &str, end: End, found: Count) {
        self.count = self.count + found;
        let reason = match end {
            End::Success if found.passed > 0 || !self.filters.is_empty() => return,
            End::Success => "it ran no test".to_owned(),
            End::Failure(reason) => reason,
        };
        println!("training: FAILED: {what}: {reason}");
        if found.failed == 0 {
            self.count.failed += 1;
        }
    }

    /// An example on two hosts, as namespaces with ssh servers.
    fn hosts(&mut self) -> Result<()> {
        if !self.filters.is_empty() {
            return Ok(());
        }
        let begin = Instant::now();
        let mut cargo = workspace::cargo();
        cargo.args(["test", "--quiet", "-p", "gaspi-tests", "--test", "hosts"]);
        cargo.env("GASPI_TEST_BUILD", workspace::release());
        let environment = workspace::target().join("training").join(ENVIRONMENTS[0].name);
        cargo.env("GASPI_TEST_TRAINING", environment);
        if let Some(server) = sshd::provide()? {
            cargo.env("GASPI_TEST_SSHD", server);
        }
        self.count = self.count + cargo_test(self.context, &mut cargo, &[], &["training/"])?;
        note("two hosts", begin);
        Ok(())
    }

    /// The comparison with plain Keras, shortly.
    fn bench(&mut self, directory: &Path) -> Result<()> {
        if !self.filters.is_empty() {
            return Ok(());
        }
        let scratch = workspace::scratch_of_process("training")?;
        let mut bench = Command::new(directory.join("bin/python"));
        bench.args(["-m", "tarantella.bench", "--rounds", "1", "--epochs", "1", "--to"]);
        bench.arg(&scratch).env("PATH", directory.join("bin"));
        let end = guarded(&mut bench, self.context.limit, |_| {})?;
        workspace::remove(&scratch)?;
        self.take("tarantella.bench", end, Count::ONE);
        Ok(())
    }

    /// The wheel in fresh environments without TensorFlow: import, ranks, the command, the tools.
    fn installs(&mut self) -> Result<()> {
        if !self.filters.is_empty() {
            return Ok(());
        }
        let versions = if self.context.full { &PYTHONS[..] } else { &PYTHONS[..1] };
        for version in versions {
            let begin = Instant::now();
            let what = format!("installed in Python {version}");
            let interpreter = match python::find(&[version]) {
                Ok(interpreter) => interpreter,
                // No reason to leave the others out.
                Err(reason) => {
                    self.take(&what, End::Failure(reason), Count::default());
                    continue;
                }
            };
            let directory = workspace::target().join("training").join(format!("bare-{version}"));
            workspace::remove(&directory)?;
            process::output(Command::new(interpreter).args(["-m", "venv"]).arg(&directory))?;
            python::pip(&directory, &[&self.wheel.display().to_string()])?;
            let mut check = Command::new(directory.join("bin/python"));
            check.arg(workspace::root().join("python/tests/check_install.py"));
            // Nothing of this checkout, and no compiler.
            check.env_clear().env("PATH", "/nonexistent").current_dir("/");
            let end = guarded(&mut check, self.context.limit, |_| {})?;
            note(&what, begin);
            self.take(&what, end, Count::ONE);
        }
        Ok(())
    }
}

/// Programs of a folder whose names begin so.
fn programs(folder: &str, beginning: &str) -> Result<Vec<PathBuf>> {
    let mut files = workspace::files(&workspace::root().join(folder), "py")?;
    files.retain(|file| {
        file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(beginning))
    });
    if files.is_empty() { Err(format!("there is no program in {folder}")) } else { Ok(files) }
}

/// The name of a program without its ending.
fn stem(program: &Path) -> String {
    program.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}
