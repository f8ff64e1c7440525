//! The ways in which a process learns its rank, the size of its job and where the exchange server
//! is: one file for each launcher, and one line in [`ALL`].

mod by_hand;
mod gaspi_run;

use super::job::{Job, RANKS_MAX};
use super::variables::{Variables, wrong};
use crate::error::Result;
use crate::ids::Rank;

/// One way to start a job.
pub(super) trait Launcher: Sync {
    /// The variables that make a process a rank of such a job. Unsetting all of them makes it a
    /// job of one rank.
    fn variables(&self) -> &'static [&'static str];

    /// The rank of this process in such a job; `None` if it was not started in this way.
    ///
    /// # Errors
    /// The variables are incomplete or contradict each other.
    fn task(&self, variables: &Variables<'_>) -> Result<Option<Task>>;

    /// The job, with the place of its exchange server.
    ///
    /// # Errors
    /// The variables are incomplete or contradict each other.
    fn job(&self, variables: &Variables<'_>, task: Task) -> Result<Job>;
}

/// Which rank of how many a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) rank: Rank,
    pub(super) size: u32,
}

/// All launchers, in the order in which they are asked.
pub(super) const ALL: [&dyn Launcher; 2] = [&gaspi_run::GaspiRun, &by_hand::ByHand];

/// GASPI_RANK and GASPI_NRANKS; `None` if nothing says that this process is a rank.
fn rank_and_size(variables: &Variables<'_>) -> Result<Option<Task>> {
    let rank = variables.number("GASPI_RANK")?;
    let size = variables.number("GASPI_NRANKS")?;
    let (rank, size) = match (rank, size) {
        (Some(rank), Some(size)) => (rank, size),
        (Some(_), None) => {
            let absent = ["GASPI_NRANKS (the number of ranks)"];
            return incomplete(variables, &["GASPI_RANK"], &absent);
        }
        (None, Some(_)) => {
            let absent = ["GASPI_RANK (the number of this rank)"];
            return incomplete(variables, &["GASPI_NRANKS"], &absent);
        }
        (None, None) => {
            let present = variables.set(&["GASPI_SOCKET", "GASPI_MFILE", "GASPI_MEETING"]);
            if present.is_empty() {
                return Ok(None);
            }
            return incomplete(variables, &present, &["GASPI_RANK", "GASPI_NRANKS"]);
        }
    };
    if size == 0 || size > u64::from(RANKS_MAX) {
        return wrong(format!("GASPI_NRANKS is {size}; a job has 1 to {RANKS_MAX} ranks"));
    }
    if rank >= size {
        return wrong(format!(
            "GASPI_RANK is {rank}, but GASPI_NRANKS is {size}: ranks are 0 to {}",
            size - 1
        ));
    }
    Ok(Some(Task { rank: Rank(rank as u16), size: size as u32 }))
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
