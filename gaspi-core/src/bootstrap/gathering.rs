//! A rank's way into its job: find the meeting, join, wait for the table. Resumable: a call that
//! runs out of time leaves the registration in place, and the next one continues.
//!
//! In a job started by hand the first rank to take the meeting's name hosts it inside its own
//! calls, and joins it like everybody else.

use super::hosting::Hosting;
use super::message::{Join, Message};
use super::system;
use super::wire::Wire;
use super::{Card, Job, KEY_BYTES, MeetingPlace, Membership, Table, random};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::{memory, socket};
use crate::timeout::Deadline;
use std::fmt::Write;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Between two attempts to reach a host that is just starting or just ending: its name exists, but
/// nothing can be waited for.
const RETRY_FIRST: Duration = Duration::from_millis(1);
const RETRY_LAST: Duration = Duration::from_millis(16);
/// How long a rank that cannot join looks for somebody to tell.
const TELL_LIMIT: Duration = Duration::from_secs(1);

/// A rank on its way into its job.
#[derive(Debug)]
pub struct Gathering {
    job: Job,
    join: Join,
    host: Option<Hosting>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Nobody answers yet.
    Seeking { pause: Duration },
    /// Connected to the host.
    Waiting(Waiting),
    /// The table is here, but this rank still hosts those that have not got theirs.
    Serving(Option<Table>),
    /// It ended with this error, or the table was handed out.
    Ended(Option<Error>),
}

#[derive(Debug)]
struct Waiting {
    wire: Wire,
    /// The host's process, 0 where it is not visible.
    pid: i32,
    /// Readable when it has ended.
    process: Option<OwnedFd>,
    missing: Option<(u32, Vec<Rank>, String)>,
    cards: Vec<Card>,
}

/// What one look at the connection brought.
enum News {
    Nothing,
    Table(Table),
    Over,
}

impl Gathering {
    /// Prepares to join `job`; [`Gathering::poll`] does it.
    ///
    /// # Errors
    /// The configuration is out of its limits.
    pub fn new(job: &Job, config: &Config, mut card: Card) -> Result<Gathering> {
        config.check()?;
        card.rank = job.rank;
        let agreed = config.agreed().into_iter().map(|(field, value)| (field.to_owned(), value));
        let join = Join { job: job.id.clone(), size: job.size, agreed: agreed.collect(), card };
        let stage = Stage::Seeking { pause: RETRY_FIRST };
        Ok(Gathering { job: job.clone(), join, host: None, stage })
    }

    /// Continues until all ranks of the job have met.
    ///
    /// # Errors
    /// [`Error::Timeout`] says who is missing; call again to continue. Any other error is final and
    /// the same on every further call.
    pub fn poll(&mut self, deadline: Deadline) -> Result<Table> {
        loop {
            match self.step() {
                Ok(Some(table)) => {
                    self.host = None;
                    self.stage = Stage::Ended(None);
                    return Ok(table);
                }
                Ok(None) => {}
                Err(error) => {
                    self.host = None;
                    self.stage = Stage::Ended(Some(error.clone()));
                    return Err(error);
                }
            }
            if deadline.passed() {
                return Err(Error::Timeout { pending: self.pending() });
            }
            self.sleep(deadline);
        }
    }

    /// Does what can be done without waiting.
    fn step(&mut self) -> Result<Option<Table>> {
        if let Stage::Ended(error) = &self.stage {
            let handed_out = || Error::Meeting { reason: "the table was handed out".to_owned() };
            return Err(error.clone().unwrap_or_else(handed_out));
        }
        if self.job.place == MeetingPlace::Nowhere {
            return self.alone().map(Some);
        }
        if let Stage::Seeking { .. } = self.stage {
            self.seek()?;
        }
        if let Some(host) = &mut self.host {
            host.serve();
        }
        if let Stage::Waiting(waiting) = &mut self.stage {
            match waiting.look(&self.job)? {
                News::Nothing => return Ok(None),
                News::Over => {
                    // If it was held here, it has found that there is another one.
                    self.host = None;
                    self.stage = Stage::Seeking { pause: RETRY_FIRST };
                }
                News::Table(mut table) => {
                    let stage = std::mem::replace(&mut self.stage, Stage::Serving(None));
                    if let (Stage::Waiting(old), MeetingPlace::Launcher(_)) =
                        (stage, &self.job.place)
                    {
                        table.membership = Membership::new(old.wire);
                    }
                    self.stage = Stage::Serving(Some(table));
                }
            }
        }
        if let Stage::Serving(table) = &mut self.stage {
            if let Some(host) = &mut self.host {
                host.serve();
                if !host.finished() {
                    return Ok(None);
                }
            }
            return Ok(table.take());
        }
        Ok(None)
    }

    /// A job of one needs nobody.
    fn alone(&self) -> Result<Table> {
        let group_max = self.join.group_max();
        let mut card = self.join.card.clone();
        card.pid = std::process::id() as i32;
        Ok(Table {
            cards: vec![card],
            area: memory::create(
                c"gaspi-node",
                crate::transport::shm::area::shared_area_size(1, group_max),
                false,
            )?,
            token: random()?,
            key: random()?,
            membership: Membership::none(),
        })
    }

    /// Connects to the host, or becomes it.
    fn seek(&mut self) -> Result<()> {
        let (name, launched) = match &self.job.place {
            MeetingPlace::Launcher(name) => (name.clone(), true),
            MeetingPlace::Agreed(name) | MeetingPlace::Hosts { name, .. } => (name.clone(), false),
            MeetingPlace::Nowhere => return Ok(()),
        };
        if !launched && self.host.is_none() {
            match socket::listen(&name) {
                Ok(fd) => self.host = Some(Hosting::new(&self.job, &name, fd)?),
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => return Err(Error::os("listening for the ranks of the job", &error)),
            }
        }
        match socket::connect(&name) {
            Ok(fd) => self.register(fd),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused && launched => {
                let reason = format!(
                    "the launcher of job {} (GASPI_MEETING={name}) does not answer: it has ended, \
                     or this process was moved to another network namespace; start the job again \
                     with gaspi_run",
                    self.job.id
                );
                Err(Error::Meeting { reason })
            }
            // Just taken and not yet listening, just over, or too many are in line.
            Err(error) => match error.kind() {
                ErrorKind::ConnectionRefused | ErrorKind::WouldBlock | ErrorKind::Interrupted => {
                    Ok(())
                }
                _ => Err(Error::os("connecting to the meeting of the job", &error)),
            },
        }
    }

    fn register(&mut self, fd: OwnedFd) -> Result<()> {
        let host = socket::credentials(fd.as_fd())
            .map_err(|error| Error::os("asking who hosts the meeting", &error))?;
        if host.uid != socket::own_uid() {
            let reason = format!(
                "the meeting of job {} is held by process {} of user {}, not by this user; set \
                 another GASPI_JOB_ID on all ranks",
                self.job.id, host.pid, host.uid
            );
            return Err(Error::Meeting { reason });
        }
        let mut wire = Wire::new(fd);
        wire.queue(Message::Join(self.join.clone()).encode().into(), None);
        wire.flush();
        let own = self.host.is_some();
        let process = if own { None } else { system::watch_process(host.pid) };
        let pid = host.pid;
        let waiting = Waiting { wire, pid, process, missing: None, cards: Vec::new() };
        self.stage = Stage::Waiting(waiting);
        Ok(())
    }

    /// Sleeps until there may be something to do.
    fn sleep(&mut self, deadline: Deadline) {
        let mut fds = Vec::new();
        let mut limit = None;
        if let Some(host) = &self.host {
            (fds, limit) = host.watches();
        }
        match &mut self.stage {
            Stage::Seeking { pause } => {
                limit = Some(limit.map_or(*pause, |limit| limit.min(*pause)));
                *pause = (*pause * 2).min(RETRY_LAST);
            }
            Stage::Waiting(waiting) => {
                let unsent = !waiting.wire.flush();
                fds.push((waiting.wire.as_fd(), unsent));
                if let Some(process) = &waiting.process {
                    fds.push((process.as_fd(), false));
                }
            }
            Stage::Serving(_) | Stage::Ended(_) => {}
        }
        system::wait(&fds, deadline, limit);
    }

    fn pending(&self) -> String {
        let text = self.awaited();
        match self.host.as_ref().and_then(Hosting::trouble) {
            Some(trouble) if !text.contains(&trouble) => format!("{text}; {trouble}"),
            _ => text,
        }
    }

    fn awaited(&self) -> String {
        let job = &self.job.id;
        match &self.stage {
            // Nobody knows who is missing, but why.
            Stage::Waiting(Waiting { missing: Some((0, _, words)), .. }) => {
                format!("the meeting of the {} ranks of job {job}; {words}", self.job.size)
            }
            Stage::Waiting(Waiting { missing: Some((_, _, words)), .. }) if !words.is_empty() => {
                format!("{words} to join job {job} ({} ranks)", self.job.size)
            }
            Stage::Waiting(Waiting { missing: Some((count, first, _)), .. }) => {
                let mut text = String::from(if *count == 1 { "rank" } else { "ranks" });
                for (i, rank) in first.iter().enumerate() {
                    // Writing to a string cannot fail.
                    let _ = write!(text, "{} {}", if i > 0 { "," } else { "" }, rank.0);
                }
                if *count as usize > first.len() {
                    let _ = write!(text, " and {} more", *count as usize - first.len());
                }
                format!("{text} of job {job} ({} ranks) to call proc_init", self.job.size)
            }
            Stage::Serving(_) => format!("the other ranks of job {job} to take their tables"),
            _ => format!("the meeting of the {} ranks of job {job}", self.job.size),
        }
    }
}

/// Tells the others of `job` that this rank cannot join, as far as anybody is there to be told.
pub(crate) fn tell_unable(job: &Job, error: &Error) {
    let (MeetingPlace::Launcher(name)
    | MeetingPlace::Agreed(name)
    | MeetingPlace::Hosts { name, .. }) = &job.place
    else {
        return;
    };
    let limit = Deadline::Never.at_most(TELL_LIMIT);
    let launched = matches!(job.place, MeetingPlace::Launcher(_));
    loop {
        match socket::connect(name) {
            Ok(fd) => {
                let host = socket::credentials(fd.as_fd());
                if host.is_ok_and(|host| host.uid == socket::own_uid()) {
                    let (job, rank) = (job.id.clone(), job.rank);
                    let unable = Message::Unable { job, rank, reason: error.to_string() };
                    let mut wire = Wire::new(fd);
                    wire.queue(unable.encode().into(), None);
                    wire.flush();
                }
                return;
            }
            Err(error) => match error.kind() {
                // Too many are in line, or nobody hosts yet.
                ErrorKind::WouldBlock | ErrorKind::Interrupted => {}
                ErrorKind::ConnectionRefused if !launched => {}
                _ => return,
            },
        }
        if limit.passed() {
            return;
        }
        system::wait(&[], limit, Some(RETRY_LAST));
    }
}

impl Waiting {
    /// Reads what the host says.
    fn look(&mut self, job: &Job) -> Result<News> {
        // Asked before reading: what a host said before it ended can then be read.
        let host_ended = self.process.as_ref().is_some_and(|fd| system::readable(fd.as_fd()));
        self.wire.flush();
        loop {
            let message = match self.wire.next() {
                Ok(Some(message)) => message,
                Ok(None) if self.wire.fill() => continue,
                Ok(None) if host_ended || self.wire.ended() => return Err(self.host_ended(job)),
                Ok(None) => return Ok(News::Nothing),
                Err(_) => {
                    let text = "a frame that this rank does not understand; use one version of \
                                the library and of gaspi_run";
                    let reason = format!("the host (process {}) sent {text}", self.pid);
                    return Err(Error::Meeting { reason });
                }
            };
            match message {
                Message::Missing { count, first, words } => {
                    self.missing = Some((count, first, words));
                }
                Message::Cards(cards) => self.cards.extend(cards),
                Message::Failed(failure) => return Err(failure.into()),
                Message::Over => return Ok(News::Over),
                Message::Area { token, key } => {
                    return self.table(job, token, key).map(News::Table);
                }
                Message::Join(_)
                | Message::Kill(_)
                | Message::Leave
                | Message::Unable { .. }
                | Message::Died { .. } => {}
            }
        }
    }

    fn table(&mut self, job: &Job, token: [u8; 16], key: [u8; KEY_BYTES]) -> Result<Table> {
        let mut cards = std::mem::take(&mut self.cards);
        self.check_numbers(job.rank, &mut cards);
        let in_order = cards.iter().enumerate().all(|(i, card)| card.rank.index() == i);
        let area = self.wire.take_descriptor();
        match area {
            Some(area) if in_order && cards.len() == job.size as usize => {
                Ok(Table { cards, area, token, key, membership: Membership::none() })
            }
            Some(_) => Err(Error::Meeting {
                reason: format!("the host (process {}) sent an incomplete table", self.pid),
            }),
            // The kernel drops descriptors that do not fit into the receiver's table.
            None => Err(Error::TooManyFiles { call: "receiving the node area".into() }),
        }
    }

    /// The host has put down the number that each process of its machine has in the pid namespace
    /// of the host. To somebody in another one they mean nothing, or somebody else: he sees no
    /// process.
    fn check_numbers(&self, own: Rank, cards: &mut [Card]) {
        let Some((machine, pid)) = cards.get(own.index()).map(|card| (card.machine, card.pid))
        else {
            return;
        };
        // Each names the other only if the other is in the same namespace or in one below.
        if self.pid != 0 && pid != 0 {
            return;
        }
        log::info!(
            "proc_init: the meeting was held in another pid namespace, so that the processes of the other \
             ranks cannot be seen; deaths are known where gaspi_run or a connection tells of them"
        );
        cards.iter_mut().filter(|card| card.machine == machine).for_each(|card| card.pid = 0);
    }

    fn host_ended(&self, job: &Job) -> Error {
        let who = match job.place {
            MeetingPlace::Launcher(_) => "the launcher",
            _ => "the rank that hosted the meeting",
        };
        let reason =
            format!("{who} of job {} (process {}) has ended during init", job.id, self.pid);
        Error::Meeting { reason }
    }
}
