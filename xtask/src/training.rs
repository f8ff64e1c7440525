//! Stage `training`: the wheel, installed in environments with TensorFlow and without; unit tests,
//! jobs of several ranks, examples.
//!
//! A test is found by its name: `python/tests/unit/test_*.py` are unit tests, which need no
//! TensorFlow; `python/tests/jobs/job_*.py` hold cases that run on any number of ranks, all in one
//! process; `python/examples/*.py` take `--quick`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::process::{self, End, guarded};
use crate::result::Result;
use crate::suite::{Context, Count, cargo_test, result_line};
use crate::{python, sshd, wheel, workspace};

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
    variables: &'static [(&'static str, &'static str)],
}

const fn full_only(
    name: &'static str,
    versions: &'static [&'static str],
    packages: &'static [&'static str],
) -> Environment {
    Environment { name, versions, packages, usual: &[], full_ranks: &[2], variables: &[] }
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
                    "job_control",
                    "job_data",
                    "job_documentation",
                    "job_faults",
                    "job_interface",
                    "job_metrics",
                    "job_training",
                    "job_types",
                ],
            ),
            (
                3,
                &[
                    "job_data",
                    "job_training.sgd_with_momentum",
                    "job_training.adam",
                    "job_training.last_batch",
                    "job_training.clipping",
                    "job_loops.unbatched_datasets",
                ],
            ),
        ],
        full_ranks: &[1, 2, 3, 4],
        variables: &[],
    },
    Environment {
        name: "tf-2.15",
        versions: &["3.11"],
        packages: &["tensorflow-cpu==2.15.1", "scikit-learn"],
        usual: &[(2, &["job_callbacks", "job_interface", "job_loops", "job_saving"])],
        full_ranks: &[1, 2, 3, 4],
        variables: &[],
    },
    full_only(
        "tf-2.10",
        &["3.10", "3.9"],
        &["tensorflow-cpu==2.10.1", "scikit-learn", "numpy<2", "protobuf<3.20"],
    ),
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
        variables: &[("TF_USE_LEGACY_KERAS", "1")],
    },
];
/// Pythons in which the wheel has to work without TensorFlow, where there are such.
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
    wheel: PathBuf,
    count: Count,
}

pub(crate) fn stage(context: &Context) -> Result<Count> {
    let begin = Instant::now();
    let interpreter = python::find(ENVIRONMENTS[0].versions)?;
    let wheel = wheel::build(&interpreter, &workspace::target().join("wheel"))?;
    note("the wheel", begin);
    let mut training = Training { context, wheel, count: Count::default() };
    for (number, environment) in ENVIRONMENTS.iter().enumerate() {
        if context.full || !environment.usual.is_empty() {
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
        if first {
            self.unit_tests(&directory, None)?;
        }
        let all = workspace::root().join("python/tests/jobs/all_jobs.py");
        for (ranks, names) in self.jobs(environment)? {
            // In one process: importing TensorFlow takes longer than many cases.
            self.job(environment, &directory, ranks, &all, &names)?;
        }
        if first {
            if self.context.full {
                self.unit_tests(&directory, Some("--failures"))?;
            }
            self.bench(&directory)?;
            let mut examples = self.chosen("python/examples", "")?;
            examples.retain(|example| self.context.full || stem(example) == USUAL_EXAMPLE);
            for example in examples {
                self.job(environment, &directory, EXAMPLE_RANKS, &example, &[QUICK.to_owned()])?;
            }
        }
        Ok(())
    }

    /// Numbers of ranks and what they run: in the full tier, and by name, whole jobs.
    fn jobs(&self, environment: &Environment) -> Result<Vec<(usize, Vec<String>)>> {
        let chosen: Vec<String> =
            self.chosen("python/tests/jobs", "job_")?.iter().map(|job| stem(job)).collect();
        if chosen.is_empty() {
            return Ok(Vec::new());
        }
        if self.context.full {
            let all = environment.full_ranks.iter();
            return Ok(all.map(|ranks| (*ranks, chosen.clone())).collect());
        }
        let named = !self.context.filters.is_empty();
        let usual = environment.usual.iter().map(|(ranks, names)| {
            let names = names.iter().map(|name| (*name).to_owned());
            (*ranks, if named { chosen.clone() } else { names.collect() })
        });
        Ok(usual.collect())
    }

    /// Programs of a folder whose names begin so, those that the command line chooses.
    fn chosen(&self, folder: &str, beginning: &str) -> Result<Vec<PathBuf>> {
        let filters = &self.context.filters;
        let mut files = programs(folder, beginning)?;
        files.retain(|file| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()))
        });
        Ok(files)
    }

    fn install(&self, directory: &Path) -> Result<()> {
        let wheel = self.wheel.display().to_string();
        python::pip(directory, &["--force-reinstall", "--no-deps", &wheel])
    }

    /// Unit tests, or those of jobs that fail.
    fn unit_tests(&mut self, directory: &Path, which: Option<&str>) -> Result<()> {
        let (mut runner, tools) =
            (Command::new(directory.join("bin/python")), directory.join("bin"));
        runner.arg(workspace::root().join("python/tests/run_unit.py")).args(which);
        runner.args(&self.context.filters).env("CUDA_VISIBLE_DEVICES", "-1");
        runner.env("GASPI_TOOLS", &tools).env("GASPI_RUN", tools.join("gaspi_run"));
        let mut found = Count::default();
        let end = guarded(&mut runner, self.context.limit, |line| {
            if let Some(result) = line.strip_prefix("test result: ") {
                found = found + result_line(result);
            }
        })?;
        self.take(which.unwrap_or("unit tests"), end, found);
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
            End::Success if found.passed > 0 || !self.context.filters.is_empty() => return,
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
        if !self.context.filters.is_empty() {
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

    /// The comparison with plain Keras, shortly; in the full tier.
    fn bench(&mut self, directory: &Path) -> Result<()> {
        if !self.context.full || !self.context.filters.is_empty() {
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
        if !self.context.filters.is_empty() {
            return Ok(());
        }
        let versions = if self.context.full { &PYTHONS[..] } else { &PYTHONS[..1] };
        for version in versions {
            let begin = Instant::now();
            let Some(interpreter) = python::of_version(version) else {
                println!("training: NOT RUN: there is no Python {version} to install the wheel in");
                continue;
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
            let what = format!("installed in Python {version}");
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
