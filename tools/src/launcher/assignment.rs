//! What one machine has to start: the same for this machine and for others, where it arrives as
//! bytes and is carried out by the agent.

use crate::binding::Bind;
use crate::refusal::Refusal;
use crate::variables::Variable;
use crate::{limits, program};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// A program with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
}

/// The ranks of one machine and all that they need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Assignment {
    /// The job's id.
    pub(crate) job: String,
    /// Ranks of the job.
    pub(crate) size: u32,
    /// The ranks of this machine, ascending; the place in this list is the number on the machine.
    pub(crate) ranks: Vec<u32>,
    /// Machines of the job.
    pub(crate) machines: u32,
    /// How the user calls this machine, in a job of several.
    pub(crate) host: String,
    /// What rank 0 runs.
    pub(crate) first: Command,
    /// What all others run.
    pub(crate) others: Command,
    /// On another machine: everything that the ranks find in their environment, and where.
    pub(crate) environment: Option<Environment>,
    /// As an absolute path.
    pub(crate) machine_file: Option<PathBuf>,
    /// What the ranks are bound to, if the user said so.
    pub(crate) bind: Option<Bind>,
    pub(crate) numa: bool,
    /// Their memory, too.
    pub(crate) bind_memory: bool,
    /// What the command line sets.
    pub(crate) variables: Vec<Variable>,
    /// Rank 0 has the terminal.
    pub(crate) debug: bool,
}

/// What a rank inherits from gaspi_run, where it is not started by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Environment {
    pub(crate) variables: Vec<(OsString, OsString)>,
    pub(crate) directory: PathBuf,
    pub(crate) umask: u32,
    /// See [`limits`].
    pub(crate) limits: [u64; limits::COUNT],
}

impl Assignment {
    /// What the rank runs.
    pub(crate) fn command(&self, rank: u32) -> &Command {
        if rank == 0 { &self.first } else { &self.others }
    }

    /// A variable of the ranks' environment.
    pub(crate) fn variable(&self, name: &str) -> Option<OsString> {
        let set = self.variables.iter().rev().find(|variable| variable.name == name);
        match (&self.environment, set) {
            (_, Some(variable)) => Some(variable.value(0).to_owned()),
            (None, None) => std::env::var_os(name),
            (Some(environment), None) => {
                let mut all = environment.variables.iter();
                all.find(|(known, _)| known == name).map(|(_, value)| value.clone())
            }
        }
    }

    /// Whether the programs of these ranks are there, told before the first is started.
    pub(crate) fn check_programs(&self) -> Result<(), Refusal> {
        let path = self.variable("PATH");
        let mut checked: Option<&OsStr> = None;
        for rank in self.ranks.iter().take(2) {
            let program = self.command(*rank).program.as_os_str();
            if checked != Some(program) {
                program::check(program, path.as_deref())?;
            }
            checked = Some(program);
        }
        Ok(())
    }
}
