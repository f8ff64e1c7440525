//! PMI-1: mpiexec of MPICH and Intel MPI (hydra), `srun --mpi=pmi2`. Lines of `name=value` over the
//! socket of PMI_FD.

use super::session::{self, Identity, ProcessManager};
use super::slurm;
use super::{Launcher, Task, local_rank};
use crate::bootstrap::job::Job;
use crate::bootstrap::system;
use crate::bootstrap::variables::{Variables, wrong};
use crate::error::Result;
use crate::os::mpi::Mpi;
use crate::timeout::Deadline;
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::time::Duration;

pub(super) struct Pmi1;

/// The variables of a connection that is handed over.
const HANDED_OVER: [&str; 3] = ["PMI_FD", "PMI_RANK", "PMI_SIZE"];
/// The key of what rank 0 publishes.
const KEY: &str = "gaspi-contact";
/// Bytes of the longest line.
const LINE_MAX: usize = 16 << 10;
/// How long the process manager may take for an answer that waits for no other rank.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of a value that all addresses do without: the key and the machine.
const VALUE_LEAST: usize = 128;

impl Launcher for Pmi1 {
    fn name(&self) -> &'static str {
        "pmi"
    }

    fn variables(&self) -> &'static [&'static str] {
        &["PMI_FD", "PMI_RANK", "PMI_SIZE", "PMI_PORT", "PMI_ID"]
    }

    fn task(&self, variables: &Variables<'_>) -> Result<Option<Task>> {
        let set = variables.set(&HANDED_OVER);
        let wire = variables.raw("PMI_FD").is_some();
        if set.is_empty() && variables.set(&["PMI_PORT", "PMI_ID"]).len() == 2 {
            return wrong(
                "PMI_PORT and PMI_ID are set but not PMI_FD: the process manager is to be called \
                 at a port, which this library does not do; start the ranks by mpiexec without \
                 -pmi-port, or with gaspi_run, or set GASPI_LAUNCHER=single for a job of one rank"
                    .to_owned(),
            );
        }
        // Slurm's own variables do where its plugin speaks something else.
        if set.is_empty() || (!wire && slurm::is_step(variables)) {
            return Ok(None);
        }
        let (rank, size) = (variables.number("PMI_RANK")?, variables.number("PMI_SIZE")?);
        let single = rank == Some(0) && size == Some(1);
        match (rank, size) {
            (Some(rank), Some(size)) if wire || single => {
                Task::new(("PMI_RANK", rank), ("PMI_SIZE", size)).map(Some)
            }
            _ => {
                let absent: Vec<&str> =
                    HANDED_OVER.into_iter().filter(|name| !set.contains(name)).collect();
                wrong(format!(
                    "{} of PMI are set but not {}; start the ranks by mpiexec of MPICH or Intel \
                     MPI or by srun --mpi=pmi2, which set all three, or with gaspi_run, or set \
                     GASPI_LAUNCHER=single for a job of one rank",
                    set.join(" and "),
                    absent.join(" and ")
                ))
            }
        }
    }

    fn job(&self, variables: &Variables<'_>, task: Task, deadline: Deadline) -> Result<Job> {
        if task.size == Some(1) && variables.raw("PMI_FD").is_none() {
            return Ok(task.job());
        }
        let fd = variables.number("PMI_FD")?.unwrap_or(u64::MAX);
        let mut local = local_rank(variables, "MPI_LOCALRANKID", task.rank.0)?;
        local = local_rank(variables, "SLURM_LOCALID", local)?;
        let one_machine = match variables.number("MPI_LOCALNRANKS")? {
            Some(local) => task.size.map(u64::from) == Some(local),
            None => variables.number("SLURM_STEP_NUM_NODES")? == Some(1),
        };
        let manager = format!("the process manager at PMI_FD={fd}");
        session::of_process((&manager, deadline), move || open(fd, task, local, one_machine))
            .map(|session| session.job())
    }

    fn runs_within(&self, other: &str, variables: &Variables<'_>) -> bool {
        // mpiexec has srun start its proxies, whose variables the ranks inherit. Those proxies
        // tell the number on the machine, which Slurm's plugin does not.
        other == slurm::Slurm.name() && variables.raw("MPI_LOCALNRANKS").is_some()
    }
}

fn open(
    fd: u64,
    task: Task,
    local_rank: u16,
    one_machine: bool,
) -> Result<(Identity, Box<dyn ProcessManager>)> {
    let opened = match Mpi::look_up() {
        Mpi::Finalised => {
            Err("was left by MPI_Finalize, so proc_init has to come first".to_owned())
        }
        Mpi::Initialised => {
            Connection::open(fd).and_then(|connection| Manager::new(connection, fd, true))
        }
        Mpi::Absent | Mpi::Loaded => {
            Connection::open(fd).and_then(|connection| Manager::new(connection, fd, false))
        }
    };
    match opened {
        Ok(manager) => {
            let identity = Identity {
                id: format!("pmi-{}", manager.space),
                rank: task.rank,
                size: task.size.unwrap_or(1),
                local_rank,
                one_machine,
            };
            Ok((identity, Box::new(manager)))
        }
        Err(reason) => wrong(format!(
            "this process was started by PMI (PMI_RANK, PMI_SIZE), but its process manager at \
             PMI_FD={fd} {reason}; start the job again by mpiexec or srun, or with gaspi_run, or \
             set GASPI_LAUNCHER=single for a job of one rank"
        )),
    }
}

/// Lines to the process manager and back.
struct Connection {
    stream: File,
    /// What has come behind the last line.
    rest: Vec<u8>,
}

impl Connection {
    fn open(fd: u64) -> std::result::Result<Connection, String> {
        let stream = system::inherited_socket(fd)?;
        Ok(Connection { stream, rest: Vec::new() })
    }

    /// Sends a command and waits for its answer, of this name.
    fn ask(
        &mut self,
        command: &str,
        answer: &str,
        patience: Option<Duration>,
    ) -> std::result::Result<Answer, String> {
        let name = command.split(' ').next().unwrap_or_default();
        let sent = self.send(format!("cmd={command}\n").as_bytes());
        sent.map_err(|error| format!("cannot be asked ({name}): {error}"))?;
        let line = self.line(name, patience)?;
        Answer::parse(&line, answer)
    }

    /// Without SIGPIPE, which would end the program if the process manager has gone.
    fn send(&self, mut bytes: &[u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            match rustix::net::send(&self.stream, bytes, SendFlags::NOSIGNAL) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn line(
        &mut self,
        name: &str,
        patience: Option<Duration>,
    ) -> std::result::Result<String, String> {
        let deadline = match patience {
            Some(patience) => Deadline::Never.at_most(patience),
            None => Deadline::Never,
        };
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line = String::from_utf8_lossy(&self.rest[..end]).into_owned();
                self.rest.drain(..=end);
                return Ok(line);
            }
            if self.rest.len() > LINE_MAX {
                return Err(format!("answered {name} by a line of more than {LINE_MAX} bytes"));
            }
            while !system::readable(self.stream.as_fd()) {
                if deadline.passed() {
                    let seconds = PATIENCE.as_secs();
                    return Err(format!("did not answer {name} within {seconds} s"));
                }
                system::wait(&[(self.stream.as_fd(), false)], deadline, None);
            }
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) => {
                    return Err(format!("has closed the connection instead of answering {name}"));
                }
                Ok(count) => self.rest.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return Err(format!("has closed the connection instead of answering {name}"));
                }
                Err(error) => return Err(format!("did not answer {name}: {error}")),
            }
        }
    }
}

/// A line of the process manager.
#[derive(Debug)]
struct Answer(String);

impl Answer {
    /// A line that has to be this answer, and no refusal.
    fn parse(line: &str, expected: &str) -> std::result::Result<Answer, String> {
        let answer = Answer(line.to_owned());
        let name = answer.value("cmd").unwrap_or_default();
        if name != expected {
            let shown: String = line.chars().take(60).collect();
            return Err(format!("answered {shown:?} where {expected} was due"));
        }
        match answer.value("rc") {
            None | Some("0") => Ok(answer),
            Some(code) => {
                let why = answer.value("msg").unwrap_or("without a reason");
                Err(format!("refused ({expected}, rc={code}): {why}"))
            }
        }
    }

    fn value(&self, name: &str) -> Option<&str> {
        let mut parts = self.0.split(' ').filter_map(|part| part.split_once('='));
        parts.find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    fn number(&self, name: &str) -> Option<usize> {
        self.value(name).and_then(|value| value.parse().ok())
    }
}

struct Manager {
    connection: Connection,
    fd: u64,
    /// The name of the job's key-value space.
    space: String,
    value_max: usize,
    /// Whether MPI has begun the conversation and will end it.
    borrowed: bool,
}

impl Manager {
    fn new(
        mut connection: Connection,
        fd: u64,
        borrowed: bool,
    ) -> std::result::Result<Manager, String> {
        if !borrowed {
            let init = "init pmi_version=1 pmi_subversion=1";
            connection.ask(init, "response_to_init", Some(PATIENCE))?;
        }
        let limits = connection.ask("get_maxes", "maxes", Some(PATIENCE))?;
        let value_max = limits.number("vallen_max").unwrap_or(0);
        if value_max < VALUE_LEAST {
            return Err(format!("takes values of {value_max} bytes, too few for {VALUE_LEAST}"));
        }
        let name = connection.ask("get_my_kvsname", "my_kvsname", Some(PATIENCE))?;
        match name.value("kvsname") {
            Some(space) if !space.is_empty() && space.len() <= 255 => {
                let space = space.to_owned();
                Ok(Manager { connection, fd, space, value_max, borrowed })
            }
            _ => Err("does not tell the name of the job (kvsname)".to_owned()),
        }
    }
}

impl ProcessManager for Manager {
    fn name(&self) -> String {
        format!("the process manager at PMI_FD={}", self.fd)
    }

    fn value_max(&self) -> usize {
        // The limit may count the end of the text.
        self.value_max - 1
    }

    fn publish(&mut self, value: &str) -> std::result::Result<(), String> {
        let put = format!("put kvsname={} key={KEY} value={value}", self.space);
        self.connection.ask(&put, "put_result", Some(PATIENCE)).map(drop)
    }

    fn fence(&mut self) -> std::result::Result<(), String> {
        self.connection.ask("barrier_in", "barrier_out", None).map(drop)
    }

    fn read(&mut self) -> std::result::Result<String, String> {
        let get = format!("get kvsname={} key={KEY}", self.space);
        let found = self.connection.ask(&get, "get_result", Some(PATIENCE))?;
        let value = found.value("value").map(str::to_owned);
        value.ok_or_else(|| "has lost what rank 0 published".to_owned())
    }

    fn close(&mut self) {
        // The one connection of the process ends with the first `finalize`.
        let ended_by_mpi = matches!(Mpi::look_up(), Mpi::Initialised | Mpi::Finalised);
        if !self.borrowed && !ended_by_mpi {
            // It may have gone already: that is the end, too.
            let _ = self.connection.ask("finalize", "finalize_ack", Some(PATIENCE));
        }
    }
}

#[cfg(test)]
#[path = "pmi1_tests.rs"]
mod tests;
