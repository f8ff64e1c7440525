//! The command line.

use clap::Parser;
use gaspi_tools::duration;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Ends what is left of this user's GASPI jobs.
#[derive(Debug, Parser)]
#[command(name = "gaspi_cleanup", version, after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Clean up on the hosts that FILE names, one per line; blank lines and # comments do not
    /// count. Without this option it is this machine.
    #[arg(short = 'm', long = "machinefile", value_name = "FILE", conflicts_with = "hosts")]
    pub(crate) machine_file: Option<PathBuf>,

    /// Clean up on the hosts of LIST, such as a,b or, as for gaspi_run, a:2,b:2.
    #[arg(long, value_name = "LIST")]
    pub(crate) hosts: Option<String>,

    /// Reach other hosts by PROGRAM, which takes the arguments of ssh, and may have options behind
    /// it, separated by blanks [default: GASPI_SSH, else ssh].
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) ssh: Option<OsString>,

    /// Hand OPTION to ssh as it is; may be repeated.
    #[arg(long = "ssh-option", value_name = "OPTION", allow_hyphen_values = true)]
    pub(crate) ssh_options: Vec<OsString>,

    /// Give up each other host that has not finished TIME after it was begun with: seconds, or with
    /// units as in 90s, 5m. 64 hosts are cleaned up at a time.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "60",
          allow_hyphen_values = true)]
    pub(crate) timeout: Duration,

    /// Only list the processes, and end none.
    #[arg(short = 'c', long = "check")]
    pub(crate) check: bool,

    /// End the job ID and no other, whether its gaspi_run still runs or not.
    #[arg(long, value_name = "ID", conflicts_with = "all")]
    pub(crate) job: Option<String>,

    /// End all jobs of this user, also those that run properly.
    #[arg(long)]
    pub(crate) all: bool,

    /// Consider only processes that were started with the variable NAME, or with that value of it;
    /// if repeated, with each of them.
    #[arg(long = "with", value_name = "NAME[=VALUE]")]
    pub(crate) variables: Vec<OsString>,

    /// Send SIGKILL at once.
    #[arg(long)]
    pub(crate) kill: bool,
}

const AFTER_HELP: &str = "\
Processes of a job are found by the job's id in their environment (GASPI_JOB_ID, with GASPI_RANK
and GASPI_NRANKS), and, whatever has started them, while they are in a job, by what the library
shows of it (from two ranks on). Without --job and --all, only jobs are ended whose gaspi_run has
gone. A job that was started without gaspi_run is listed and kept: whether it is still wanted cannot
be seen. This program and those that it was started by are never ended.

A process is asked to end by SIGTERM and killed by SIGKILL three seconds later. There is a line for
each process: job, process, rank, what was done, command; with its host before it where there are
several. gaspi_cleanup is carried over to hosts where it is not installed. A host that does not
finish in time (--timeout) is named and given up; all others are cleaned up.

The exit status is 0 if everything that was to be ended has ended, or with -c; 1 if something \
is left
or a host did not answer in time; 2 for a wrong command line or machine file.

Examples:
  gaspi_cleanup -c                    what is there?
  gaspi_cleanup                       end what is left of jobs whose gaspi_run was killed
  gaspi_cleanup --job 53c5a1d0f2b2f34e
  gaspi_cleanup -m machines --all     end all jobs of this user on these hosts
  gaspi_cleanup --all --with STUDY=7  end all jobs that were started with STUDY=7";
