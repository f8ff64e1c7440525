//! What is to be started, worked out and checked before anything is.

use crate::Refusal;
use crate::arguments::Arguments;
use crate::binding::{self, Bind, Share};
use crate::topology::Topology;
use gaspi_core::bootstrap::machines::{self, ThisMachine};
use gaspi_tools::system;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Descriptors that gaspi_run needs for each rank: pidfd, two pipes or files, its place in the meeting.
const DESCRIPTORS_PER_RANK: u64 = 4;
const DESCRIPTORS_OWN: u64 = 64;

/// A program with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
}

/// What is to be started.
#[derive(Debug)]
pub(crate) struct Plan {
    /// By rank.
    pub(crate) commands: Vec<Command>,
    /// The cores of each rank.
    pub(crate) shares: Vec<Share>,
    /// The machine that all ranks are on.
    pub(crate) host: String,
    /// As an absolute path.
    pub(crate) machine_file: Option<PathBuf>,
    pub(crate) numa: bool,
    /// Rank 0 has the terminal.
    pub(crate) debug: bool,
    pub(crate) label: bool,
    pub(crate) kill_on_failure: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) output_directory: Option<PathBuf>,
}

impl Plan {
    pub(crate) fn new(arguments: &Arguments) -> Result<Plan, Refusal> {
        let machine = ThisMachine::look_up();
        let hosts = match &arguments.machine_file {
            Some(file) => Some(
                machines::read(file).map_err(|error| Refusal::usage(plain(&error.to_string())))?,
            ),
            None => None,
        };
        let ranks = count(arguments, hosts.as_deref())?;
        if let (Some(file), Some(hosts)) = (&arguments.machine_file, &hosts) {
            check_hosts(&machine, file, &hosts[..ranks as usize], arguments.ping)?;
        } else if arguments.ping {
            eprintln!("gaspi_run: {} is this machine", machine.name());
        }
        check_descriptors(ranks)?;
        let machine_file = match &arguments.machine_file {
            Some(file) => Some(std::path::absolute(file).map_err(|error| {
                Refusal::usage(format!("machine file {}: {error}", file.display()))
            })?),
            None => None,
        };
        let topology = Topology::look_up();
        let bind = match arguments.bind {
            Some(bind) => bind,
            None if arguments.numa => Bind::None,
            None => binding::default(&topology, ranks),
        };
        Ok(Plan {
            commands: commands(arguments, ranks)?,
            shares: binding::shares(&topology, bind, ranks as usize),
            host: machine.name().to_owned(),
            machine_file,
            numa: arguments.numa,
            debug: arguments.debug,
            label: arguments.label,
            kill_on_failure: arguments.kill_on_failure,
            timeout: arguments.timeout,
            output_directory: arguments.output_directory.clone(),
        })
    }
}

/// The library speaks of the environment; here the file came from the command line.
fn plain(text: &str) -> String {
    text.strip_prefix("environment: ").unwrap_or(text).to_owned()
}

fn count(arguments: &Arguments, hosts: Option<&[String]>) -> Result<u32, Refusal> {
    let max = gaspi_core::bootstrap::RANKS_MAX;
    let lines = hosts.map(|hosts| hosts.len());
    match (arguments.ranks, lines) {
        (Some(ranks), Some(lines)) if ranks as usize > lines => Err(Refusal::usage(format!(
            "the machine file names {lines} hosts, too few for {ranks} ranks (-n); repeat a host \
             for every rank that it is to run"
        ))),
        (Some(ranks), _) => Ok(ranks),
        (None, Some(lines)) => match u32::try_from(lines) {
            Ok(ranks) if ranks <= max => Ok(ranks),
            _ => Err(Refusal::usage(format!(
                "the machine file names {lines} hosts, but a job has 1 to {max} ranks; use -n"
            ))),
        },
        (None, None) => Err(Refusal::usage(
            "say how many ranks to start with -n N, or name their hosts with -m FILE (see --help)",
        )),
    }
}

fn check_hosts(
    machine: &ThisMachine,
    file: &Path,
    hosts: &[String],
    ping: bool,
) -> Result<(), Refusal> {
    let mut known: Vec<&String> = Vec::new();
    for (rank, host) in hosts.iter().enumerate() {
        if known.contains(&host) {
            continue;
        }
        if !machine.is(host) {
            return Err(Refusal::usage(format!(
                "machine file {}: rank {rank} is to run on {host:?}, which is not this machine \
                 ({:?}); TCP between hosts is not available in this version, so every line has to \
                 name this machine",
                file.display(),
                machine.name()
            )));
        }
        if ping {
            eprintln!("gaspi_run: {host} is this machine");
        }
        known.push(host);
    }
    Ok(())
}

fn check_descriptors(ranks: u32) -> Result<(), Refusal> {
    let needed = u64::from(ranks) * DESCRIPTORS_PER_RANK + DESCRIPTORS_OWN;
    let limit = system::descriptor_limit().rlim_max;
    if needed > limit {
        return Err(Refusal::launcher(format!(
            "{ranks} ranks need {needed} file descriptors in gaspi_run, but the hard limit is \
             {limit}; raise it (ulimit -Hn) or start fewer ranks"
        )));
    }
    Ok(())
}

/// Who runs what.
fn commands(arguments: &Arguments, ranks: u32) -> Result<Vec<Command>, Refusal> {
    let Some((program, rest)) = arguments.command.split_first() else {
        return Err(Refusal::usage("name the program to start (see --help)"));
    };
    let others = Command { program: program.clone(), arguments: rest.to_vec() };
    let mut first = others.clone();
    if let Some(binary) = &arguments.binary {
        first.program.clone_from(binary);
    }
    check_program(&first.program)?;
    if ranks > 1 && others != first {
        check_program(&others.program)?;
    }
    if arguments.debug {
        if which(OsStr::new("gdb")).is_none() {
            return Err(Refusal {
                status: 127,
                message: "-d needs gdb, which is not in PATH".into(),
            });
        }
        let mut under = vec![OsString::from("--args"), first.program];
        under.append(&mut first.arguments);
        first = Command { program: "gdb".into(), arguments: under };
    }
    let mut commands = vec![first];
    commands.resize(ranks as usize, others);
    Ok(commands)
}

/// The file that a shell would find for `program`.
fn which(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(program));
    }
    let executable = |path: &PathBuf| {
        std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(executable)
}

/// Whether the program is there and may be executed, told before the first rank is started.
fn check_program(program: &OsStr) -> Result<(), Refusal> {
    let name = program.display();
    let Some(path) = which(program) else {
        let near = Path::new(program).is_file();
        let hint = if near {
            format!("; for the one in this directory write ./{name}")
        } else {
            String::new()
        };
        let message = format!("program {name} was not found in PATH{hint}");
        return Err(Refusal { status: 127, message });
    };
    let about = match std::fs::metadata(&path) {
        Ok(about) => about,
        Err(error) => {
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            let status = if missing { 127 } else { 126 };
            let reason = if missing {
                "does not exist".to_owned()
            } else {
                format!("is not accessible: {error}")
            };
            return Err(Refusal { status, message: format!("program {name} {reason}") });
        }
    };
    let reason = if about.is_dir() {
        "is a directory".to_owned()
    } else if about.permissions().mode() & 0o111 == 0 {
        format!("is not executable; chmod +x {name}")
    } else {
        return Ok(());
    };
    Err(Refusal { status: 126, message: format!("program {name} {reason}") })
}
