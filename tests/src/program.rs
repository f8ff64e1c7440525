//! Test programs in C, C++ and Fortran, and the comments at their top that say how to build and
//! run them. `tests/c/README.md` describes these comments.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::compile::{self, Linkage};
use crate::job::{Failed, Job, Outcome};
use crate::{Result, built};

/// What is made from a source.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Product {
    /// A program that is run.
    #[default]
    Program,
    /// Nothing; it has only to compile.
    Nothing,
    /// A shared library for another test.
    SharedLibrary,
}

/// One source with its instructions.
#[derive(Debug, Default)]
pub struct Program {
    /// Name of the file without its ending.
    pub name: String,
    /// The source.
    pub source: PathBuf,
    /// Numbers of ranks to run it with.
    pub ranks: Vec<u32>,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Whether it is started by gaspi_run.
    pub is_launched: bool,
    /// What is made from it.
    pub product: Product,
    /// Name of the library to preload.
    pub preload: Option<String>,
    /// Ways to link it, if they matter.
    pub links: Vec<String>,
    /// A line that every rank prints.
    pub expected: Option<String>,
    compiled: OnceLock<Result<PathBuf>>,
}

impl Program {
    /// All sources of a folder of the checkout with one of these endings, by name.
    ///
    /// # Errors
    /// When there is none, or a comment makes no sense.
    pub fn all(folder: &str, endings: &[&str]) -> Result<Vec<Program>> {
        let folder = built::root().join(folder);
        let mut sources: Vec<PathBuf> = std::fs::read_dir(&folder)
            .map_err(|error| Failed(format!("cannot read {}: {error}", folder.display())))?
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| {
                let ending = path.extension().and_then(|ending| ending.to_str());
                ending.is_some_and(|ending| endings.contains(&ending))
            })
            .collect();
        sources.sort();
        if sources.is_empty() {
            return Err(Failed(format!("there is no program in {}", folder.display())));
        }
        sources.into_iter().map(Program::read).collect()
    }

    fn read(source: PathBuf) -> Result<Program> {
        let text = std::fs::read_to_string(&source)?;
        let stem = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut program = Program { name: stem, is_launched: true, ..Program::default() };
        for line in text.lines().take(12) {
            let comment = line
                .strip_prefix("/* ")
                .and_then(|rest| rest.strip_suffix(" */"))
                .or_else(|| line.strip_prefix("! "));
            let Some((key, value)) = comment.and_then(|comment| comment.split_once(": ")) else {
                continue;
            };
            let words = || value.split_whitespace();
            let refuse = || Failed(format!("{}: strange {key:?} {value:?}", source.display()));
            match key {
                "ranks" => {
                    let numbers: std::result::Result<Vec<u32>, _> =
                        words().map(str::parse).collect();
                    program.ranks = numbers.map_err(|_| refuse())?;
                }
                "args" => program.arguments = words().map(str::to_owned).collect(),
                "launcher" if value == "none" => program.is_launched = false,
                "build" if value == "compile" => program.product = Product::Nothing,
                "build" if value == "shared" => program.product = Product::SharedLibrary,
                "preload" => program.preload = Some(value.to_owned()),
                "link" => program.links = words().map(str::to_owned).collect(),
                "expect" => program.expected = Some(value.to_owned()),
                "language" if value == "c++" => {}
                "launcher" | "build" | "language" => return Err(refuse()),
                _ => {}
            }
        }
        if program.product == Product::Program && program.ranks.is_empty() {
            let source = source.display();
            return Err(Failed(format!("{source}: it does not say on how many ranks it runs")));
        }
        program.source = source;
        Ok(program)
    }

    /// Compiles it once, against libgaspi.so of the release build, into `directory`.
    ///
    /// # Errors
    /// What the compiler says.
    pub fn compiled(&self, directory: &Path) -> Result<PathBuf> {
        let build = || {
            let to = directory.join(&self.name);
            let is_cxx = self.source.extension().is_some_and(|ending| ending == "cpp");
            compile::make(&self.source, &to, is_cxx, self.product, Linkage::Shared)?;
            Ok(to)
        };
        self.compiled.get_or_init(build).clone()
    }

    /// What was compiled, on so many ranks; `prefix` is a command in front of it, such as valgrind.
    ///
    /// # Errors
    /// When gaspi_run is not built.
    pub fn job(&self, program: &Path, ranks: u32, prefix: &[String]) -> Result<Job> {
        let mut words: Vec<String> = prefix.to_vec();
        words.push(program.display().to_string());
        words.extend(self.arguments.iter().cloned());
        let (first, rest) = (PathBuf::from(&words[0]), &words[1..]);
        let job = if self.is_launched { Job::launched(ranks, &first)? } else { Job::plain(&first) };
        Ok(job.args(rest).limit(std::time::Duration::from_secs(300)))
    }

    /// Runs a job of this program.
    ///
    /// # Errors
    /// When it fails, hangs, leaves processes behind or does not print what it should.
    pub fn run_job(&self, job: Job, ranks: u32) -> Result<Outcome> {
        let outcome = job.run()?.success()?;
        if let Some(expected) = &self.expected {
            let found = outcome.stdout.lines().filter(|line| *line == expected).count();
            if found != ranks as usize {
                let what = format!("{found} of {ranks} ranks printed {expected:?}");
                return Err(outcome.failure(&what));
            }
        }
        Ok(outcome)
    }

    /// Runs what was compiled on so many ranks; `prefix` as for [`job`](Program::job).
    ///
    /// # Errors
    /// As both have them.
    pub fn run(&self, program: &Path, ranks: u32, prefix: &[String]) -> Result<Outcome> {
        self.run_job(self.job(program, ranks, prefix)?, ranks)
    }
}
