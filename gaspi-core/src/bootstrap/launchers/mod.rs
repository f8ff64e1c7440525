//! The ways in which a process learns its rank, the size of its job and where the exchange server
//! is: one file for each launcher, and one line in [`ALL`].
//!
//! What the environment says is read without side effects ([`Launcher::task`]) from all of them,
//! so that two that contradict each other are an error and not a job that nobody wanted. Only the
//! chosen one then looks further ([`Launcher::job`]).

mod by_hand;
mod contact;
mod gaspi_run;
mod kubernetes;
mod pmi1;
mod pmix;
pub(super) mod session;
mod slurm;
mod torchrun;

use super::job::{Job, RANKS_MAX, hosts_by_rank};
use super::variables::{Variables, wrong};
use crate::error::Result;
use crate::ids::Rank;
use crate::os::process;
use crate::timeout::Deadline;
use std::sync::Arc;

/// One way to start a job.
pub(super) trait Launcher: Sync {
    /// What GASPI_LAUNCHER calls it.
    fn name(&self) -> &'static str;

    /// The variables that make a process a rank of such a job. Unsetting all of them makes it a
    /// job of one rank.
    fn variables(&self) -> &'static [&'static str];

    /// The rank of this process in such a job; `None` if it was not started in this way.
    ///
    /// # Errors
    /// The variables are incomplete or contradict each other.
    fn task(&self, variables: &Variables<'_>) -> Result<Option<Task>>;

    /// The job, with the place of its exchange server. A process manager is waited for until
    /// `deadline`.
    ///
    /// # Errors
    /// The variables are incomplete or contradict each other, or the time has run out.
    fn job(&self, variables: &Variables<'_>, task: Task, deadline: Deadline) -> Result<Job>;

    /// Whether the size that its variables name may be that of a part of the job only.
    fn may_count_a_part(&self, _variables: &Variables<'_>) -> bool {
        false
    }

    /// Whether it starts jobs of its own inside those of `other`, whose variables then speak of
    /// something else.
    fn runs_within(&self, _other: &str, _variables: &Variables<'_>) -> bool {
        false
    }
}

/// Which rank of how many a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) rank: Rank,
    /// `None` where only the process manager knows it.
    pub(super) size: Option<u32>,
    /// The other launcher whose variables tell the size, where those of this one do not.
    pub(super) size_by: Option<&'static str>,
}

impl Task {
    /// A rank and a size that a launcher's variables name.
    fn new(rank: (&str, u64), size: (&str, u64)) -> Result<Task> {
        let (size_name, size) = size;
        if size == 0 || size > u64::from(RANKS_MAX) {
            return wrong(format!("{size_name} is {size}; a job has 1 to {RANKS_MAX} ranks"));
        }
        let (rank_name, rank) = rank;
        if rank >= size {
            return wrong(format!(
                "{rank_name} is {rank}, but {size_name} is {size}: ranks are 0 to {}",
                size - 1
            ));
        }
        Ok(Task { rank: Rank(rank as u16), size: Some(size as u32), size_by: None })
    }

    /// The same, with the size that another launcher tells if its own does not.
    fn or_size_by(self, (launcher, other): Choice) -> Task {
        match (self.size, other.size) {
            (None, Some(size)) => Task { size: Some(size), size_by: Some(launcher.name()), ..self },
            _ => self,
        }
    }

    /// A job of as many ranks, of which nothing else is known yet.
    fn job(self) -> Job {
        Job::of(self.rank, self.size.unwrap_or(1))
    }

    fn says(&self) -> String {
        match (self.size, self.size_by) {
            (Some(size), None) => format!("{} of {size}", self.rank),
            (Some(size), Some(by)) => format!("{} of {size} (the size by {by})", self.rank),
            (None, _) => self.rank.to_string(),
        }
    }
}

/// All launchers, in the order in which they are asked.
pub(super) const ALL: [&dyn Launcher; 7] = [
    &gaspi_run::GaspiRun,
    &by_hand::ByHand,
    &pmix::Pmix,
    &pmi1::Pmi1,
    &slurm::Slurm,
    &torchrun::Torchrun,
    &kubernetes::Kubernetes,
];

/// The value of GASPI_LAUNCHER for a job of one rank, whatever else is set.
const SINGLE: &str = "single";

/// A launcher that has started this process, and as what.
pub(super) type Choice = (&'static dyn Launcher, Task);

/// The launcher that has started this process, if one has, and why it was taken in words.
///
/// # Errors
/// The variables of the first launcher that has set any are incomplete, or those of two launchers
/// contradict each other.
pub(super) fn choose(variables: &Variables<'_>) -> Result<(Option<Choice>, String)> {
    if let Some(name) = variables.text("GASPI_LAUNCHER")? {
        return named(variables, &name);
    }
    let mut chosen: Option<Choice> = None;
    for launcher in ALL {
        let Some((first, task)) = chosen else {
            chosen = launcher.task(variables)?.map(|task| (launcher, task));
            continue;
        };
        // Half an environment of a launcher that is not asked says nothing.
        if let Ok(Some(other)) = launcher.task(variables)
            && !first.runs_within(launcher.name(), variables)
        {
            let counts_all = !launcher.may_count_a_part(variables);
            let other = Task { size: other.size.filter(|_| counts_all), ..other };
            agree(variables, (first, task), (launcher, other))?;
            // Those behind are compared with it, and so is what a process manager tells.
            chosen = Some((first, task.or_size_by((launcher, other))));
        }
    }
    let why = match &chosen {
        Some((launcher, _)) => {
            let set = variables.set(launcher.variables());
            format!("by {}", set.join(", "))
        }
        None => "no launcher has set its variables".to_owned(),
    };
    Ok((chosen, why))
}

/// The launcher that GASPI_LAUNCHER names.
fn named(variables: &Variables<'_>, name: &str) -> Result<(Option<Choice>, String)> {
    let why = format!("GASPI_LAUNCHER is {name}");
    if name == SINGLE {
        return Ok((None, why));
    }
    let mut expected = None;
    for launcher in ALL.iter().filter(|launcher| launcher.name() == name) {
        if let Some(task) = launcher.task(variables)? {
            return Ok((Some((*launcher, task)), why));
        }
        expected = Some(*launcher);
    }
    match expected {
        Some(launcher) => wrong(format!(
            "GASPI_LAUNCHER is {name}, but that has not started this process: of {} only these are \
             set: {}; unset GASPI_LAUNCHER, or set it to {SINGLE} for a job of one rank",
            launcher.variables().join(", "),
            or_none(&variables.set(launcher.variables())),
        )),
        None => {
            let mut names: Vec<&str> = ALL.iter().map(|launcher| launcher.name()).collect();
            names.dedup();
            wrong(format!("GASPI_LAUNCHER is {name:?}; it can be {} or {SINGLE}", names.join(", ")))
        }
    }
}

fn or_none(names: &[&str]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Two launchers that have both set their variables have to say the same.
fn agree(variables: &Variables<'_>, first: Choice, other: Choice) -> Result<()> {
    let ((one, task), (two, found)) = (first, other);
    let sizes_differ = task.size.is_some() && found.size.is_some() && task.size != found.size;
    if task.rank == found.rank && !sizes_differ {
        return Ok(());
    }
    let set = |launcher: &dyn Launcher| variables.set(launcher.variables()).join(", ");
    wrong(format!(
        "two launchers contradict each other: by {} ({}) this is {}, by {} ({}) it is {}; set \
         GASPI_LAUNCHER to {}, {} or {SINGLE}, or unset the variables of the other one",
        one.name(),
        set(one),
        task.says(),
        two.name(),
        set(two),
        found.says(),
        one.name(),
        two.name()
    ))
}

/// GASPI_RANK and GASPI_NRANKS; `None` if nothing says that this process is a rank.
fn rank_and_size(variables: &Variables<'_>) -> Result<Option<Task>> {
    let rank = variables.number("GASPI_RANK")?;
    let size = variables.number("GASPI_NRANKS")?;
    match (rank, size) {
        (Some(rank), Some(size)) => {
            Task::new(("GASPI_RANK", rank), ("GASPI_NRANKS", size)).map(Some)
        }
        (Some(_), None) => {
            let absent = ["GASPI_NRANKS (the number of ranks)"];
            incomplete(variables, &["GASPI_RANK"], &absent)
        }
        // The index of the pod is the rank.
        (None, _) if variables.raw(kubernetes::INDEX).is_some() => Ok(None),
        (None, Some(_)) => {
            let absent = ["GASPI_RANK (the number of this rank)"];
            incomplete(variables, &["GASPI_NRANKS"], &absent)
        }
        (None, None) => {
            let present = variables.set(&["GASPI_SOCKET", "GASPI_MFILE", "GASPI_MEETING"]);
            if present.is_empty() {
                return Ok(None);
            }
            incomplete(variables, &present, &["GASPI_RANK", "GASPI_NRANKS"])
        }
    }
}

/// Says what is missing, and how a program that a rank has started becomes a job of its own.
fn incomplete<T>(variables: &Variables<'_>, present: &[&str], absent: &[&str]) -> Result<T> {
    let list = |names: &[&str]| match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    };
    let is = |names: &[&str]| if names.len() == 1 { "is" } else { "are" };
    let mut names: Vec<&str> = Vec::new();
    for name in ALL.iter().flat_map(|launcher| launcher.variables()) {
        if !names.contains(name) {
            names.push(name);
        }
    }
    let unset: String = variables.set(&names).iter().map(|name| format!("-u {name} ")).collect();
    wrong(format!(
        "{} {} set but {} {} not; set all of them, or start the program with gaspi_run, or make \
         it a job of one rank: env {unset}PROGRAM",
        list(present),
        is(present),
        list(absent),
        is(absent)
    ))
}

/// The same job, whose ranks may be on several hosts, of which only this one is known.
fn over_hosts(job: Job) -> Job {
    let hosts = own_host_only(job.rank, job.size);
    Job { hosts, spans_hosts: true, ..job }
}

/// By rank: only the machine of this rank is known.
fn own_host_only(rank: Rank, size: u32) -> Arc<[Arc<str>]> {
    let mut names = vec![String::new(); size as usize];
    names[rank.index()] = process::host_name();
    hosts_by_rank(names)
}

/// The number of this rank among those of its machine, as far as a launcher's variable tells it.
fn local_rank(variables: &Variables<'_>, name: &str, otherwise: u16) -> Result<u16> {
    let found = variables.number(name)?;
    Ok(found.and_then(|number| u16::try_from(number).ok()).unwrap_or(otherwise))
}

#[cfg(test)]
#[path = "choice_tests.rs"]
mod tests;
