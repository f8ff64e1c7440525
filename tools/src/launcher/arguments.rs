//! The command line.

use crate::binding::Bind;
use crate::variables::{self, Variable};
use clap::{Parser, ValueEnum};
use gaspi_tools::duration;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Starts the ranks of a GASPI job, on this machine or over ssh on others, and looks after them.
#[derive(Debug, Parser)]
#[command(
    name = "gaspi_run",
    version,
    override_usage = "gaspi_run -n N [OPTIONS] PROGRAM [ARGUMENTS]...\n       \
                      gaspi_run -m FILE [OPTIONS] PROGRAM [ARGUMENTS]...\n       \
                      gaspi_run --hosts LIST [OPTIONS] PROGRAM [ARGUMENTS]...\n       \
                      gaspi_run -m FILE -p",
    after_help = AFTER_HELP
)]
pub(crate) struct Arguments {
    /// Start N ranks [default: as many as the machine file, the list of hosts or the allocation has
    /// slots]
    #[arg(short = 'n', long = "nodes", visible_alias = "ranks", value_name = "N",
          value_parser = ranks, allow_negative_numbers = true)]
    pub(crate) ranks: Option<u32>,

    /// Take the host of rank r from line r of FILE, in any order; blank lines and # comments do not
    /// count. A line HOST slots=4 or HOST:4 stands for four. A host is a name, an address, or
    /// USER@HOST as for ssh. Ranks on this machine need no ssh
    #[arg(short = 'm', long = "machinefile", value_name = "FILE", conflicts_with = "hosts")]
    pub(crate) machine_file: Option<PathBuf>,

    /// Take the hosts from LIST, each with its number of ranks, by default 1: a:2,b:2. Addresses of
    /// IPv6 in brackets: [fd00::1]:2
    #[arg(long, value_name = "LIST")]
    pub(crate) hosts: Option<String>,

    /// Start all ranks on this host, also in an allocation of a batch system
    #[arg(long, conflicts_with_all = ["hosts", "machine_file"])]
    pub(crate) here: bool,

    /// Start more ranks than the machine file, the list of hosts or the allocation has slots: the
    /// first ones get further ranks, in the same order
    #[arg(long)]
    pub(crate) oversubscribe: bool,

    /// Print rank, host and cores of each rank, and start nothing
    #[arg(long = "dry-run")]
    pub(crate) dry_run: bool,

    /// Reach other hosts by PROGRAM, which may have options behind it, separated by blanks: srun,
    /// rsh, blaunch, pbs_tmrsh, qrsh, or one that takes the arguments of ssh [default: GASPI_SSH,
    /// else what the batch system of an allocation has, if it is in PATH, else ssh]
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) ssh: Option<OsString>,

    /// Hand OPTION to that program as it is, before options of gaspi_run; may be repeated. ssh
    /// obeys the first that it meets, so -oBatchMode=no lets it ask for passwords
    #[arg(long = "ssh-option", value_name = "OPTION", allow_hyphen_values = true)]
    pub(crate) ssh_options: Vec<OsString>,

    /// Have hosts that were started start further ones, at most WIDTH each [default: 32], if there
    /// are more other hosts than that; all call this host back by TCP. From 64 other hosts on it is
    /// done without this option; 0 reaches all from here. srun starts all hosts by itself
    #[arg(long, value_name = "WIDTH", num_args = 0..=1, require_equals = true,
          default_missing_value = "32", hide_default_value = true,
          value_parser = clap::value_parser!(u32).range(0..=1024))]
    pub(crate) tree: Option<u32>,

    /// Say which cores each rank may use [default: core if there are no more ranks than usable
    /// cores, else none; none with -N]
    #[arg(long, value_name = "WHAT", value_enum, hide_default_value = true)]
    pub(crate) bind: Option<Bind>,

    /// Take the memory of each rank from the NUMA node of its cores; of ranks that are not bound to
    /// cores, from node R modulo their number, R being the rank's number on its machine
    #[arg(long = "bind-memory")]
    pub(crate) bind_memory: bool,

    /// Let each rank bind itself to the NUMA node that its local rank selects
    /// (GASPI_SET_NUMA_SOCKET=1)
    #[arg(short = 'N', long = "NUMA")]
    pub(crate) numa: bool,

    /// Run PROGRAM as rank 0 instead, with the same arguments
    #[arg(short = 'b', long = "binary", value_name = "PROGRAM")]
    pub(crate) binary: Option<OsString>,

    /// Run rank 0 under gdb, with this terminal
    #[arg(short = 'd', long = "debug")]
    pub(crate) debug: bool,

    /// Say for every host of the job whether it can be reached before starting; without PROGRAM
    /// only that
    #[arg(short = 'p', long = "ping")]
    pub(crate) ping: bool,

    /// Begin each line of output with the rank that wrote it, as "[3] " or, with =rank, as
    /// "[rank 3] "; the former also says at the start which process each rank is and on which cores
    /// it runs
    #[arg(long, value_name = "STYLE", value_enum, num_args = 0..=1, require_equals = true,
          default_missing_value = "number", hide_possible_values = true)]
    pub(crate) label: Option<Label>,

    /// Set NAME to VALUE in the environment of all ranks on all hosts, whatever it is; may be
    /// repeated
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variables::ParserOfOne)]
    pub(crate) variables: Vec<Variable>,

    /// The same with a value for each rank of a machine, in turn; may be repeated:
    /// --local-env CUDA_VISIBLE_DEVICES=0,1
    #[arg(long = "local-env", value_name = "NAME=VALUE,...",
          value_parser = variables::ParserOfList)]
    pub(crate) local_variables: Vec<Variable>,

    /// End the whole job as soon as one rank fails: SIGTERM, and SIGKILL three seconds later
    #[arg(long)]
    pub(crate) kill_on_failure: bool,

    /// The job may lose ranks: the exit status is 0 if at least N ranks end with 0; as soon as
    /// fewer than N can, the job is ended as by --kill-on-failure
    #[arg(long, value_name = "N", value_parser = ranks, allow_negative_numbers = true,
          conflicts_with = "kill_on_failure")]
    pub(crate) min_ranks: Option<u32>,

    /// If a rank fails, repeat at the end what the first one that did wrote last on standard error:
    /// at most N lines
    #[arg(long, value_name = "N", allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) last_lines: Option<u32>,

    /// End the job after TIME: seconds, or with units as in 90s, 30m, 1h30m. Says what each rank
    /// was doing, then SIGTERM, and SIGKILL three seconds later; the exit status is 124
    #[arg(long, value_name = "TIME", value_parser = duration::parse,
          allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,

    /// Write the output of rank R to DIR/rank-R.out and DIR/rank-R.err instead of here, as it is
    /// and without labels, on this machine also for ranks on others. The directory is made, files
    /// that exist are emptied; R has as many digits as the largest rank
    #[arg(long = "output-dir", value_name = "DIR")]
    pub(crate) output_directory: Option<PathBuf>,

    /// With --output-dir: show the output of rank 0 here, too
    #[arg(long, requires = "output_directory")]
    pub(crate) tee: bool,

    /// The program, then its arguments, passed on exactly as they are
    #[arg(required_unless_present_any = ["ping", "dry_run"], trailing_var_arg = true,
          value_name = "PROGRAM")]
    pub(crate) command: Vec<OsString>,
}

/// How lines are labelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Label {
    /// "[3] "
    Number,
    /// "[rank 3] "
    Rank,
}

const AFTER_HELP: &str = "\
Each rank gets the environment and working directory of gaspi_run, and finds its place in
GASPI_RANK, GASPI_NRANKS and GASPI_SOCKET (its number on its machine). Standard input goes to
rank 0; the output of all ranks comes out line by line, unmixed.

Other hosts need sshd (in an allocation of Slurm: nothing), the program at the same place, and the
working directory; gaspi_run itself is carried over where it is not installed. Nothing starts
before all hosts are ready. Ranks there get the environment of gaspi_run too, but for variables of
a session or an account (HOME, SSH_*, XDG_*, DISPLAY, ...), the umask, and the limits of open
files, locked memory and core files.

Without -m and --hosts, in an allocation of Slurm, PBS, LSF, Grid Engine or the Kubernetes MPI
operator, gaspi_run takes its hosts, and as many ranks on each as it has slots there; --here keeps
all ranks on this host. It reaches these hosts by srun of Slurm, pbs_tmrsh of PBS, blaunch of LSF
or qrsh of Grid Engine, where that is in PATH, all others by ssh.

A rank that dies leaves the others running, as GASPI programs may go on without it; use
--kill-on-failure to end the job instead, or --min-ranks if what is left may still succeed.
Signals that gaspi_run gets go to all ranks; a second interrupt (Ctrl-C) kills them. If a rank fails
after SIGINT, SIGTERM, SIGHUP or SIGQUIT, --kill-on-failure and --min-ranks give the others three
seconds to end by it.
If gaspi_run itself is killed, its ranks are killed too.

If a job hangs, send SIGUSR1 to gaspi_run (it is not passed on): a table on standard error says
for every rank whether it has joined, in which call it sleeps, for how long, and where that can
be seen for which ranks. It works also while ranks are stopped.

Ranks that do not outnumber the usable cores get cores of their own; use --bind none for ranks
with many threads, or for several jobs on the same cores. GASPI_BIND tells a rank its cores.

The exit status is that of the first rank that failed (128 + the signal's number if a signal
killed it), 0 if none did; 2 for a wrong command line, 127 and 126 for a program that does not
exist or cannot be executed, 124 if --timeout ended the job, 125 if gaspi_run itself could not
go on or could not write out what ranks wrote (also if their host was lost behind their ends),
255 if a host could not be reached or was lost with ranks.

Examples:
  gaspi_run -n 4 ./heat input.txt             four ranks
  gaspi_run -n 4 --label ./heat               ... and who said what
  gaspi_run -m machines -b ./master ./worker  hosts from a file, another program as rank 0
  gaspi_run --hosts a:2,b:2 ./heat            ranks 0 and 1 on a, 2 and 3 on b
  gaspi_run ./heat                            in an allocation: one rank for each slot
  gaspi_run --dry-run ./heat                  ... where would each rank run?
  gaspi_run -m machines -p                    do all hosts answer?
  gaspi_run -n 2 -d ./heat                    rank 0 under gdb
  gaspi_run -n 4 --timeout 30m --output-dir log ./heat
                                              at most half an hour, a file for each rank
  kill -USR1 PID                              of gaspi_run: what is every rank waiting for?";

fn ranks(text: &str) -> Result<u32, String> {
    let max = gaspi_core::bootstrap::RANKS_MAX;
    match text.parse() {
        Ok(ranks) if (1..=max).contains(&ranks) => Ok(ranks),
        // The launchers of MPI have -np, which reads as -n p here.
        _ if text.starts_with('p') => Err("-np of other launchers is -n here".to_owned()),
        _ => Err(format!("a job has 1 to {max} ranks")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_the_program_is_its_own() {
        let line = ["gaspi_run", "-n", "2", "prog", "-n", "5", "--help", "--", "-d"];
        let parsed = Arguments::try_parse_from(line).expect("parsed");
        assert_eq!(parsed.ranks, Some(2));
        assert_eq!(parsed.command, ["prog", "-n", "5", "--help", "--", "-d"]);
        assert!(!parsed.debug);
        let line = ["gaspi_run", "-n", "2", "--", "-odd-name", "x"];
        assert_eq!(Arguments::try_parse_from(line).expect("parsed").command, ["-odd-name", "x"]);
    }

    #[test]
    fn absurd_numbers_are_told_without_a_wrong_tip() {
        for (option, range) in [
            ("-n", "1 to 65535"),
            ("--min-ranks", "1 to 65535"),
            ("--last-lines", "1..=1000"),
            ("--timeout", "a time is"),
            ("--tree", "0..=1024"),
        ] {
            for number in ["-1", "-1e9", "99999999999999999999", "1.5.2"] {
                let joined = format!("{option}={number}");
                let line = match option {
                    "--tree" => vec!["gaspi_run", "-n", "2", &joined, "p"],
                    "-n" => vec!["gaspi_run", option, number, "p"],
                    _ => vec!["gaspi_run", "-n", "2", option, number, "p"],
                };
                let text = Arguments::try_parse_from(&line).err().map(|error| error.to_string());
                let Some(text) = text else {
                    // So many seconds are a time.
                    assert_eq!((option, number), ("--timeout", "99999999999999999999"));
                    continue;
                };
                let named = text.contains(number) && !text.contains("tip:");
                // What is no number at all has no range.
                let ranged = text.contains(range) || text.contains("invalid digit");
                assert!(named && (ranged || text.contains("number too large")), "{line:?}: {text}");
            }
        }
        let text = Arguments::try_parse_from(["gaspi_run", "-n", "2", "--timeout", "-5s", "p"]);
        let text = text.expect_err("accepted").to_string();
        assert!(text.contains("-5s") && text.contains("a time is"), "{text}");
    }

    #[test]
    fn mistakes_are_told() {
        for (line, word) in [
            (&["gaspi_run", "-n", "0", "p"][..], "1 to 65535"),
            (&["gaspi_run", "-n", "100000", "p"], "1 to 65535"),
            (&["gaspi_run", "-n", "x", "p"], "1 to 65535"),
            (&["gaspi_run", "-n", "2"], "PROGRAM"),
            (&["gaspi_run", "--lable", "-n", "2", "p"], "--label"),
            (&["gaspi_run", "--hosts", "a", "-m", "f", "p"], "--machinefile"),
            (&["gaspi_run", "--hosts", "a", "--here", "p"], "--here"),
            (&["gaspi_run", "-n", "2", "--env", "=x", "p"], "NAME=VALUE"),
            (&["gaspi_run", "-n", "2", "--local-env", "A", "p"], "NAME=VALUE"),
            (&["gaspi_run", "-n", "2", "--env", "GASPI_RANK=1", "p"], "set by gaspi_run"),
            (&["gaspi_run", "-n", "2", "--tee", "p"], "--output-dir"),
            (&["gaspi_run", "-n", "2", "--min-ranks", "0", "p"], "1 to 65535"),
        ] {
            let text = Arguments::try_parse_from(line).expect_err("accepted").to_string();
            assert!(text.contains(word), "{line:?}: {text}");
        }
    }
}
