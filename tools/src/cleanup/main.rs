//! gaspi_cleanup: ends what is left of this user's jobs.
//!
//! A job leaves nothing behind in files or shared memory, so there are only processes to be ended:
//! children that ranks left behind, and jobs that were started by hand or by another launcher. On
//! other machines it does the same through ssh.

mod arguments;
mod far;
mod processes;
mod remote_run;

use arguments::Arguments;
use clap::Parser;
use gaspi_core::bootstrap::this_machine::ThisMachine;
use gaspi_tools::hosts::{self, Machine};
use gaspi_tools::remote_agent;
use gaspi_tools::{signals, system};
use processes::{Keeper, Member, Outcome};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

/// From SIGTERM to SIGKILL.
const GRACE: Duration = Duration::from_secs(3);
/// How often is looked for processes that were started meanwhile.
const PASSES_MAX: usize = 5;

/// Whether a process of a job is to be ended.
fn is_to_end(arguments: &Arguments, member: &Member) -> bool {
    let named = arguments.job.is_some() || arguments.all;
    !arguments.check && (named || member.keeper == Keeper::Nobody)
}

fn line(member: &Member, what: &str) -> String {
    let (place, pid, command) = (&member.place, member.pid, &member.command);
    format!("job {} pid {pid} rank {}: {what}: {command}\n", place.job, place.rank)
}

/// Why a process was not ended.
fn kept(keeper: Keeper) -> &'static str {
    match keeper {
        Keeper::Launcher => "its gaspi_run is running",
        Keeper::Nobody => "its gaspi_run has gone",
        Keeper::Unknown => "started without gaspi_run",
    }
}

fn done(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Ended => "ended by SIGTERM",
        Outcome::Killed => "killed by SIGKILL",
        Outcome::Gone => "had ended already",
        Outcome::Stays => "does not end, not even by SIGKILL",
        Outcome::Refused => "may not be signalled",
    }
}

/// The machines to clean up on.
fn machines(arguments: &Arguments) -> Result<Vec<Machine>, String> {
    let names = match (&arguments.machine_file, &arguments.hosts) {
        (Some(file), _) => hosts::read(file)?,
        (None, Some(list)) => hosts::list(list).map_err(|error| format!("--hosts: {error}"))?,
        (None, None) => return Ok(Vec::new()),
    };
    Ok(hosts::machines(&names, &ThisMachine::look_up()))
}

/// Lists and ends on this machine, which is called `host` where there are several; true if nothing
/// is left that was to be ended.
fn clean(arguments: &Arguments, host: Option<&str>) -> bool {
    let wanted =
        |member: &Member| arguments.job.as_ref().is_none_or(|job| *job == member.place.job);
    // Without a reader of the output all is still ended.
    let say = |member: &Member, what: &str| {
        let name = host.map_or(String::new(), |host| format!("{host}: "));
        let _ = io::stdout().write_all(format!("{name}{}", line(member, what)).as_bytes());
    };
    let (mut clean, mut jobs_kept) = (true, BTreeSet::new());
    for pass in 0..PASSES_MAX {
        let found = processes::find(&arguments.variables).into_iter().filter(wanted);
        let (to_end, others): (Vec<Member>, Vec<Member>) =
            found.partition(|member| is_to_end(arguments, member));
        if pass == 0 {
            if others.is_empty() && to_end.is_empty() {
                let of =
                    arguments.job.as_ref().map_or("a job".to_owned(), |id| format!("job {id}"));
                let place = host.map_or(String::new(), |host| format!("{host}: "));
                let with = match arguments.variables.is_empty() {
                    true => "",
                    false => " with these variables",
                };
                eprintln!("gaspi_cleanup: {place}there is no process of {of} of this user{with}");
            }
            for member in others {
                let verb = if arguments.check { "" } else { "kept, " };
                say(&member, &format!("{verb}{}", kept(member.keeper)));
                jobs_kept.insert(member.place.job);
            }
        }
        if to_end.is_empty() {
            clean = true;
            break;
        }
        // Whether they have ended is seen in the next pass, which also finds their new children.
        clean = false;
        let outcomes = processes::end(&to_end, GRACE, arguments.kill);
        let stuck = [Outcome::Stays, Outcome::Refused];
        for (member, outcome) in to_end.iter().zip(&outcomes) {
            say(member, done(*outcome));
        }
        if outcomes.iter().any(|outcome| stuck.contains(outcome)) {
            break;
        }
    }
    if !arguments.check && !jobs_kept.is_empty() {
        let ids: Vec<String> = jobs_kept.into_iter().collect();
        let place = host.map_or(String::new(), |host| format!("{host}: "));
        eprintln!(
            "gaspi_cleanup: {place}kept {}; end one with --job ID, all with --all",
            ids.join(", ")
        );
    }
    clean
}

/// Here and elsewhere, at the same time.
fn clean_all(arguments: &Arguments) -> Result<bool, String> {
    let machines = machines(arguments)?;
    let names = machines.iter().filter(|machine| !machine.here).map(|machine| machine.name.clone());
    let names: Vec<String> = names.collect();
    let far = if names.is_empty() { None } else { Some(far::Far::start(arguments, names)?) };
    let here = machines.iter().find(|machine| machine.here);
    let several = machines.len() > 1;
    let mut clean = true;
    if machines.is_empty() || here.is_some() {
        let name = here.filter(|_| several).map(|machine| machine.name.as_str());
        clean = self::clean(arguments, name);
    }
    Ok(far.is_none_or(far::Far::finish) && clean)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse_from(remote_agent::arguments());
    signals::keep_children();
    // A descriptor for every process that is to be ended.
    system::raise_descriptor_limit();
    match clean_all(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("gaspi_cleanup: {message}");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ended() {
        let (nobody, launcher, unknown) = (Keeper::Nobody, Keeper::Launcher, Keeper::Unknown);
        for (line, ended) in [
            (&["gaspi_cleanup"][..], &[nobody][..]),
            (&["gaspi_cleanup", "-c"], &[]),
            (&["gaspi_cleanup", "--all"], &[nobody, launcher, unknown]),
            (&["gaspi_cleanup", "--all", "-c"], &[]),
            (&["gaspi_cleanup", "--job", "x"], &[nobody, launcher, unknown]),
        ] {
            let arguments = Arguments::try_parse_from(line).expect("parsed");
            for keeper in [nobody, launcher, unknown] {
                let member = processes::tests::member("x", keeper);
                assert_eq!(is_to_end(&arguments, &member), ended.contains(&keeper), "{line:?}");
            }
        }
        let both = ["gaspi_cleanup", "--all", "--job", "x"];
        assert!(Arguments::try_parse_from(both).is_err());
    }
}
