//! What is to be started, worked out and checked before anything is.

use crate::allocation::{Allocation, UsualShell};
use crate::arguments::{Arguments, Label};
use crate::assignment::{Assignment, Command};
use crate::open_files::OPEN_MAX;
use crate::refusal::Refusal;
use crate::topology::Topology;
use crate::{environment, info, local_ranks, program};
use gaspi_core::bootstrap::this_machine::ThisMachine;
use gaspi_tools::hosts::{self, Machine};
use gaspi_tools::remote_agent::Tool;
use gaspi_tools::remote_shell::RemoteShell;
use gaspi_tools::system;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

/// Descriptors that are needed for each rank: pidfd, two pipes or files, its place in the meeting.
const DESCRIPTORS_PER_RANK: u64 = 4;
/// For each other machine: pidfd and three pipes.
const DESCRIPTORS_PER_MACHINE: u64 = 4;
/// The same of one that calls back, with its connection and the program that has started it.
const DESCRIPTORS_PER_CALLER: u64 = 7;
const DESCRIPTORS_OWN: u64 = 64;
/// Seconds for which a silent machine is waited for.
pub(crate) const DEAD_AFTER: u64 = 5;
/// How many times that long ssh waits for a word of sshd.
const SSH_PATIENCE: u64 = 10;
/// From so many other machines on those that were started start further ones.
const TREE_FROM: usize = 64;
/// Machines that each of them starts at most.
const TREE_WIDTH: usize = 32;

/// What is to be started.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) ranks: usize,
    /// The ranks of this machine.
    pub(crate) own: Assignment,
    /// Those of other machines.
    pub(crate) others: Vec<Assignment>,
    /// How to get there.
    pub(crate) way: Option<Way>,
    /// The machine of each rank, as messages call it.
    pub(crate) hosts: Vec<String>,
    /// There is nothing to be started.
    pub(crate) only_ping: bool,
    pub(crate) ping: bool,
    /// Only tell what would be started.
    pub(crate) dry_run: bool,
    pub(crate) debug: bool,
    pub(crate) output: Output,
    /// The job is ended when fewer ranks than these can end well; none: ranks may fail, but that is
    /// a failure of the job.
    pub(crate) needed: Option<usize>,
    /// Fewer ranks than all that end well are a success.
    pub(crate) may_lose: bool,
    pub(crate) timeout: Option<Duration>,
}

/// What becomes of the output of ranks.
#[derive(Debug)]
pub(crate) struct Output {
    /// What begins each line.
    pub(crate) label: Option<Label>,
    /// How many lines of the first rank that failed are said again.
    pub(crate) last_lines: usize,
    /// It goes to files in this directory, that of rank 0 with `tee` here too.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) tee: bool,
}

impl Plan {
    /// Files that gaspi_run keeps open at once for ranks, where so many have theirs themselves.
    pub(crate) fn files_beside(&self, own: usize) -> usize {
        let has_files = self.output.directory.is_some() && !self.only_ping;
        if has_files { OPEN_MAX.min(2 * (self.ranks - own)) } else { 0 }
    }

    /// A line for each rank: rank, host, cores.
    pub(crate) fn listed(&self) -> String {
        let topology = Topology::look_up();
        let shares = local_ranks::shares(&self.own, &topology);
        let mut places = vec!["on cores that its host chooses".to_owned(); self.ranks];
        for (rank, share) in self.own.ranks.iter().zip(&shares) {
            places[*rank as usize] = share.words();
        }
        let width = self.hosts.iter().map(|host| host.chars().count()).max().unwrap_or(0);
        let digits = self.ranks.saturating_sub(1).to_string().len();
        let line = |(rank, (host, place)): (usize, (&String, &String))| {
            format!("rank {rank:>digits$}  {host:width$}  {place}\n")
        };
        self.hosts.iter().zip(&places).enumerate().map(line).collect()
    }
}

/// The way to other machines.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) shell: RemoteShell,
    /// Which program that is and why, for the user.
    pub(crate) words: String,
    /// gaspi_run itself.
    pub(crate) tool: Tool,
    /// How long a machine that is silent is waited for.
    pub(crate) patience: Duration,
    /// Machines start further ones, at most so many each.
    pub(crate) tree: Option<usize>,
}

impl Way {
    /// Whether so many machines are reached through programs that start an agent each or many, and
    /// need not stay: their agents have to call back.
    pub(crate) fn is_by_starters(&self, machines: usize) -> bool {
        self.shell.starts_many() || self.tree.is_some_and(|width| machines > width)
    }

    /// Whether an agent calls back that could stay with the pipes of its program. Of those of ssh
    /// it is known without that whether its machine is there.
    pub(crate) fn invites_each(&self) -> bool {
        !self.shell.is_ssh()
    }

    fn descriptors(&self, machines: usize) -> u64 {
        // Most that starters reach have no program of their own.
        let each = match self.invites_each() && !self.is_by_starters(machines) {
            true => DESCRIPTORS_PER_CALLER,
            false => DESCRIPTORS_PER_MACHINE,
        };
        machines as u64 * each
    }
}

impl Plan {
    /// Says how other hosts are reached, to users who want to know.
    pub(crate) fn tell_way(&self) {
        if let Some(way) = self.way.as_ref().filter(|_| self.dry_run || info::is_wanted()) {
            eprintln!("gaspi_run: {}", way.words);
        }
    }

    pub(crate) fn new(arguments: &Arguments) -> Result<Plan, Refusal> {
        let this = ThisMachine::look_up();
        let named = named(arguments)?;
        let ranks = count(arguments, named.as_ref())?;
        let shell = named.as_ref().map(|named| named.shell.clone()).unwrap_or_default();
        let names: Vec<String> = match named {
            Some(Named { hosts, .. }) => hosts.into_iter().cycle().take(ranks as usize).collect(),
            None => vec![this.name().to_owned(); ranks as usize],
        };
        let mut machines = hosts::machines(&names, &this);
        let several = machines.len() > 1;
        for machine in machines.iter_mut().filter(|machine| machine.here) {
            if arguments.ping {
                eprintln!("gaspi_run: {} is this machine", machine.name);
            }
            // Elsewhere localhost would be another one.
            if !several || hosts::is_loopback(&machine.name) {
                this.name().clone_into(&mut machine.name);
            }
        }
        let mut plan = Plan::bare(arguments, ranks, &machines, &shell)?;
        for machine in &machines {
            machine.lines.iter().for_each(|rank| plan.hosts[*rank].clone_from(&machine.name));
        }
        check_start(&plan)?;
        Ok(plan)
    }

    fn bare(
        arguments: &Arguments,
        ranks: u32,
        machines: &[Machine],
        shell: &UsualShell,
    ) -> Result<Plan, Refusal> {
        let machine_file = match &arguments.machine_file {
            Some(file) => Some(std::path::absolute(file).map_err(|error| {
                Refusal::usage(format!("machine file {}: {error}", file.display()))
            })?),
            None => None,
        };
        let (first, others) = commands(arguments)?;
        let mut own = Assignment {
            job: new_id()?,
            size: ranks,
            ranks: Vec::new(),
            machines: machines.len() as u32,
            host: String::new(),
            first,
            others,
            environment: None,
            machine_file,
            bind: arguments.bind,
            numa: arguments.numa,
            bind_memory: arguments.bind_memory,
            variables: [&arguments.variables[..], &arguments.local_variables[..]].concat(),
            debug: arguments.debug,
        };
        let mut others = Vec::new();
        let environment = environment::look_up()
            .map_err(|error| Refusal::launcher(format!("working directory: {error}")))?;
        for machine in machines.iter().filter(|machine| !machine.here) {
            let ranks = ranks_of(machine);
            let (host, environment) = (machine.name.clone(), Some(environment.clone()));
            others.push(Assignment { ranks, host, environment, debug: false, ..own.clone() });
        }
        if let Some(machine) = machines.iter().find(|machine| machine.here) {
            (own.ranks, own.host) = (ranks_of(machine), machine.name.clone());
        }
        let way = match others.len() {
            0 => None,
            machines => Some(way(arguments, shell, machines)?),
        };
        Ok(Plan {
            ranks: ranks as usize,
            own,
            others,
            way,
            hosts: vec![String::new(); ranks as usize],
            only_ping: arguments.command.is_empty() && !arguments.dry_run,
            ping: arguments.ping,
            dry_run: arguments.dry_run,
            debug: arguments.debug,
            output: Output {
                label: arguments.label,
                last_lines: arguments.last_lines.unwrap_or(0) as usize,
                directory: arguments.output_directory.clone(),
                tee: arguments.tee,
            },
            needed: needed(arguments, ranks)?,
            may_lose: arguments.min_ranks.is_some(),
            timeout: arguments.timeout,
        })
    }
}

/// How many ranks have to end well, if that matters before all have ended.
fn needed(arguments: &Arguments, ranks: u32) -> Result<Option<usize>, Refusal> {
    match arguments.min_ranks {
        Some(least) if least > ranks => Err(Refusal::usage(format!(
            "--min-ranks {least} is more than the {ranks} ranks of the job"
        ))),
        Some(least) => Ok(Some(least as usize)),
        None => Ok(arguments.kill_on_failure.then_some(ranks as usize)),
    }
}

fn ranks_of(machine: &Machine) -> Vec<u32> {
    machine.lines.iter().map(|line| *line as u32).collect()
}

/// Whether this machine can do its part.
fn check_start(plan: &Plan) -> Result<(), Refusal> {
    let own = plan.own.ranks.len();
    check_descriptors(own, plan.others.len(), plan.way.as_ref(), plan.files_beside(own))?;
    if plan.only_ping || plan.dry_run {
        return Ok(());
    }
    if plan.debug && plan.own.ranks.first() != Some(&0) {
        return Err(Refusal::usage(format!(
            "-d needs rank 0 on this machine, where the terminal is, but it is to run on {}",
            plan.hosts[0]
        )));
    }
    plan.own.check_programs()
}

/// The way to so many other machines. `usual` is the remote shell where the user names none.
fn way(arguments: &Arguments, usual: &UsualShell, machines: usize) -> Result<Way, Refusal> {
    let patience = dead_after(std::env::var_os("GASPI_DEAD_AFTER").as_deref())?;
    // Ssh asks a process, which may have to wait for its turn; what the kernel over there says
    // counts first (ssh_liveness). It is all there is where ssh goes through another process.
    let silent = SSH_PATIENCE * patience.as_secs();
    let (program, options) = (arguments.ssh.as_deref(), &arguments.ssh_options);
    let shell = RemoteShell::new(program, usual.program, options, silent);
    let shell = shell.map_err(Refusal::usage)?;
    let tool = Tool::own("gaspi_run")
        .map_err(|error| Refusal::launcher(format!("finding gaspi_run itself: {error}")))?;
    let reason = match program {
        Some(_) => "--ssh names it",
        None if std::env::var_os("GASPI_SSH").is_some() => "GASPI_SSH names it",
        None => &usual.reason,
    };
    let words = format!("other hosts are reached by {}: {reason}", shell.program().display());
    let tree = match arguments.tree {
        Some(width) => Some(width as usize).filter(|width| *width > 0),
        None => (machines >= TREE_FROM).then_some(TREE_WIDTH),
    };
    Ok(Way { shell, words, tool, patience, tree })
}

/// What GASPI_DEAD_AFTER says, as the library reads it.
pub(crate) fn dead_after(value: Option<&OsStr>) -> Result<Duration, Refusal> {
    let Some(value) = value else { return Ok(Duration::from_secs(DEAD_AFTER)) };
    match value.to_str().and_then(|text| text.parse().ok()) {
        Some(seconds @ 3..=3600) => Ok(Duration::from_secs(seconds)),
        _ => Err(Refusal::usage(format!(
            "GASPI_DEAD_AFTER is {}; it takes 3 to 3600 seconds",
            value.display()
        ))),
    }
}

/// Hosts that the user or a batch system names, by slot.
struct Named {
    hosts: Vec<String>,
    /// What names them.
    by: String,
    /// What gives a host more ranks.
    remedy: &'static str,
    /// What reaches them, unless the user says otherwise.
    shell: UsualShell,
}

fn named(arguments: &Arguments) -> Result<Option<Named>, Refusal> {
    let remedy = "repeat a host for every rank that it is to run";
    match (&arguments.machine_file, &arguments.hosts) {
        (Some(file), _) => {
            let hosts = hosts::read(file).map_err(Refusal::usage)?;
            let (by, shell) = ("machine file".to_owned(), UsualShell::default());
            return Ok(Some(Named { hosts, by, remedy, shell }));
        }
        (None, Some(list)) => {
            let hosts = hosts::list(list);
            let hosts = hosts.map_err(|error| Refusal::usage(format!("--hosts: {error}")))?;
            return Ok(Some(Named {
                hosts,
                by: "list of hosts (--hosts)".to_owned(),
                remedy,
                shell: UsualShell::default(),
            }));
        }
        (None, None) if arguments.here => return Ok(None),
        (None, None) => {}
    }
    let found = Allocation::look_up(&|name| std::env::var_os(name));
    let found = found.map_err(|reason| {
        Refusal::usage(format!("{reason}; use -m, --hosts or --here to leave it aside"))
    })?;
    Ok(found.map(|allocation| Named {
        shell: allocation.shell(std::env::var_os("PATH").as_deref()),
        hosts: allocation.hosts,
        by: format!("allocation ({})", allocation.by),
        remedy: "ask for a larger one",
    }))
}

fn count(arguments: &Arguments, named: Option<&Named>) -> Result<u32, Refusal> {
    let max = gaspi_core::bootstrap::RANKS_MAX;
    match (arguments.ranks, named) {
        (Some(ranks), Some(Named { hosts, by, remedy, .. }))
            if ranks as usize > hosts.len() && !arguments.oversubscribe =>
        {
            let slots = hosts.len();
            Err(Refusal::usage(format!(
                "the {by} has {slots} slots for ranks, too few for {ranks} ranks (-n); {remedy}, \
                 or use --oversubscribe"
            )))
        }
        (Some(ranks), _) => Ok(ranks),
        (None, Some(Named { hosts, by, .. })) => match u32::try_from(hosts.len()) {
            Ok(ranks) if (1..=max).contains(&ranks) => Ok(ranks),
            _ => Err(Refusal::usage(format!(
                "the {by} has {} slots for ranks, but a job has 1 to {max} ranks; use -n",
                hosts.len()
            ))),
        },
        (None, None) => Err(Refusal::usage(
            "say how many ranks to start with -n N, or name their hosts with -m FILE or --hosts \
             LIST (see --help)",
        )),
    }
}

/// Whether so many ranks here, so many other machines that are reached this way, and so many files
/// for what comes from these can be looked after.
pub(crate) fn check_descriptors(
    ranks: usize,
    machines: usize,
    way: Option<&Way>,
    files: usize,
) -> Result<(), Refusal> {
    let others = way.map_or(0, |way| way.descriptors(machines)) + files as u64;
    let needed = ranks as u64 * DESCRIPTORS_PER_RANK + others + DESCRIPTORS_OWN;
    let limit = system::descriptor_limit().rlim_max;
    if needed > limit {
        let others = match (machines, files) {
            (0, _) => String::new(),
            (count, 0) => format!(" and {count} other hosts"),
            (count, _) => format!(" and {count} other hosts with {files} files (--output-dir)"),
        };
        return Err(Refusal::launcher(format!(
            "{ranks} ranks{others} need {needed} file descriptors in gaspi_run, but the hard \
             limit is {limit}; raise it (ulimit -Hn) or start fewer ranks"
        )));
    }
    Ok(())
}

/// What rank 0 and all others run.
fn commands(arguments: &Arguments) -> Result<(Command, Command), Refusal> {
    let Some((program, rest)) = arguments.command.split_first() else {
        let nothing = Command { program: OsString::new(), arguments: Vec::new() };
        return Ok((nothing.clone(), nothing));
    };
    let others = Command { program: program.clone(), arguments: rest.to_vec() };
    let mut first = others.clone();
    if let Some(binary) = &arguments.binary {
        first.program.clone_from(binary);
    }
    if arguments.debug {
        let path = std::env::var_os("PATH");
        // What gdb is given is checked here, as gdb itself would only say that it is not there.
        program::check(&first.program, path.as_deref())?;
        if program::which(OsStr::new("gdb"), path.as_deref()).is_none() {
            return Err(Refusal {
                status: 127,
                message: "-d needs gdb, which is not in PATH".into(),
            });
        }
        let mut under = vec![OsString::from("--args"), first.program];
        under.append(&mut first.arguments);
        first = Command { program: "gdb".into(), arguments: under };
    }
    Ok((first, others))
}

/// A name for the job that no other has.
fn new_id() -> Result<String, Refusal> {
    let mut random = [0; 8];
    let filled = std::fs::File::open("/dev/urandom")
        .and_then(|mut source| std::io::Read::read_exact(&mut source, &mut random));
    filled.map_err(|error| Refusal::launcher(format!("/dev/urandom: {error}")))?;
    Ok(format!("{:016x}", u64::from_le_bytes(random)))
}
