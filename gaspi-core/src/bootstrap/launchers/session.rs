//! A job whose ranks exchange a few bytes through the process manager that started them: rank 0
//! publishes a [`Contact`], all wait for each other once, and each reads it.
//!
//! What may block is done by a thread of its own, so that no call outlives its timeout. A process
//! has one connection to its process manager and asks once: later starts in the same process go to
//! the same place.

use super::contact::{self, Contact};
use crate::bootstrap::addresses::{self, Audience, Restrictions};
use crate::bootstrap::auth::Key;
use crate::bootstrap::job::{HubLocation, Job, ServerLocation, derived_name};
use crate::bootstrap::system::{self, random};
use crate::bootstrap::this_machine;
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::mpi::{self, Mpi};
use crate::os::{interfaces, process};
use crate::sync::{AtomicU32, Mutex, Ordering};
use crate::timeout::Deadline;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};

/// A connection to a process manager. Its calls may block; errors are in words.
pub(super) trait ProcessManager: Send {
    /// How messages call it.
    fn name(&self) -> String;
    /// Bytes of the longest value.
    fn value_max(&self) -> usize;
    /// Publishes a value, which others may read after the next `fence`.
    fn publish(&mut self, value: &str) -> std::result::Result<(), String>;
    /// Waits for all ranks of the job.
    fn fence(&mut self) -> std::result::Result<(), String>;
    /// What rank 0 has published.
    fn read(&mut self) -> std::result::Result<String, String>;
    /// Takes leave, so that the end of this process is no failure for the process manager; MPI may
    /// have done so by then.
    fn close(&mut self);
}

/// What a process manager says of this process.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    /// Names the job; no other job of this user at this time has it.
    pub(super) id: String,
    pub(super) rank: Rank,
    pub(super) size: u32,
    pub(super) local_rank: u16,
    /// Whether all ranks are known to be on this machine.
    pub(super) one_machine: bool,
}

enum Progress {
    Ready(Box<dyn ProcessManager>),
    Asked(Receiver<std::result::Result<Contact, String>>),
    Known(Contact),
    Failed(String),
}

/// The connection of this process to its process manager, and what came of it.
pub(crate) struct Session {
    identity: Identity,
    manager: String,
    progress: Mutex<Progress>,
    /// Readable once the thread has an answer.
    wake: UnixStream,
    waker: Mutex<Option<UnixStream>>,
    /// How often this process has begun to join.
    attempts: AtomicU32,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({:?})", self.identity)
    }
}

/// There is one for each process.
impl PartialEq for Session {
    fn eq(&self, other: &Session) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Session {}

/// The session of a process, or how far it has come.
enum Stage {
    None,
    /// A thread asks the process manager who this process is.
    Opening(Receiver<Result<Arc<Session>>>),
    Open(Arc<Session>),
}

/// Where a process keeps its session.
pub(super) struct Place(Mutex<Stage>);

static OF_PROCESS: Place = Place::new();

/// The session of this process; `open` makes it the first time, on a thread of its own. `manager`
/// is what it waits for, in words.
///
/// # Errors
/// What `open` says, no thread or descriptor is left, or [`Error::Timeout`]: the next call goes on.
pub(super) fn of_process(
    (manager, deadline): (&str, Deadline),
    open: impl FnOnce() -> Result<(Identity, Box<dyn ProcessManager>)> + Send + 'static,
) -> Result<Arc<Session>> {
    OF_PROCESS.session((manager, deadline), open)
}

impl Place {
    pub(super) const fn new() -> Place {
        Place(Mutex::new(Stage::None))
    }

    pub(super) fn session(
        &self,
        (manager, deadline): (&str, Deadline),
        open: impl FnOnce() -> Result<(Identity, Box<dyn ProcessManager>)> + Send + 'static,
    ) -> Result<Arc<Session>> {
        // Two threads that start at once are refused by the library above.
        let mut stage = self.0.lock();
        let answer = match std::mem::replace(&mut *stage, Stage::None) {
            Stage::Open(session) => {
                *stage = Stage::Open(session.clone());
                return Ok(session);
            }
            Stage::Opening(answer) => answer,
            Stage::None => {
                let (tell, answer) = mpsc::channel();
                start_thread(move || {
                    let opened = open();
                    let session = opened.and_then(|(identity, manager)| {
                        Session::new(identity, manager).map(Arc::new)
                    });
                    // A start that was given up hears nothing.
                    let _ = tell.send(session);
                })?;
                answer
            }
        };
        let opened = match deadline.remaining() {
            Some(left) => answer.recv_timeout(left),
            None => answer.recv().map_err(RecvTimeoutError::from),
        };
        match opened {
            Ok(session) => {
                let session = session?;
                *stage = Stage::Open(session.clone());
                Ok(session)
            }
            Err(RecvTimeoutError::Timeout) => {
                *stage = Stage::Opening(answer);
                let pending = format!("{manager} to tell the place of this process in its job");
                Err(Error::Timeout { pending })
            }
            Err(RecvTimeoutError::Disconnected) => {
                let reason = format!("the thread that asked {manager} has ended");
                Err(Error::Meeting { reason })
            }
        }
    }
}

/// Starts a thread that talks to the process manager.
fn start_thread(work: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = process::with_signals_blocked(|| {
        std::thread::Builder::new().name("gaspi-launcher".to_owned()).spawn(work)
    });
    started.map(drop).map_err(|error| Error::thread("the thread that asks the launcher", &error))
}

impl Session {
    pub(super) fn new(identity: Identity, manager: Box<dyn ProcessManager>) -> Result<Session> {
        let (wake, waker) = UnixStream::pair().map_err(|error| Error::os("socketpair", &error))?;
        let name = manager.name();
        let mut progress = Progress::Ready(manager);
        if identity.one_machine || identity.size == 1 {
            // The name of the job is enough.
            if let Progress::Ready(manager) = &mut progress {
                take_leave(manager);
            }
        }
        Ok(Session {
            identity,
            manager: name,
            progress: Mutex::new(progress),
            wake,
            waker: Mutex::new(Some(waker)),
            attempts: AtomicU32::new(0),
        })
    }

    /// The job, whose place of meeting the client asks for.
    pub(super) fn job(self: &Arc<Session>) -> Job {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        let Identity { id, rank, size, local_rank, one_machine } = self.identity.clone();
        let job = Job { id, local_rank, ..Job::of(rank, size) };
        if size == 1 {
            return job;
        }
        if one_machine {
            let server = ServerLocation::FirstRank(derived_name(job.id.as_bytes()));
            return Job { server, ..job };
        }
        let server = ServerLocation::ByManager(self.clone());
        Job { server, ..super::over_hosts(job) }
    }

    /// The server of the job, once rank 0 has told where that is.
    ///
    /// # Errors
    /// The process manager has failed.
    pub(in crate::bootstrap) fn poll(&self) -> Result<Option<ServerLocation>> {
        let mut progress = self.progress.lock();
        let next = match &mut *progress {
            Progress::Ready(_) => None,
            Progress::Asked(answer) => match answer.try_recv() {
                Err(TryRecvError::Empty) => return Ok(None),
                Ok(Ok(contact)) => Some(Progress::Known(contact)),
                Ok(Err(reason)) => Some(Progress::Failed(reason)),
                Err(TryRecvError::Disconnected) => {
                    Some(Progress::Failed("the thread that asked it has ended".to_owned()))
                }
            },
            Progress::Known(_) | Progress::Failed(_) => None,
        };
        if let Some(next) = next {
            *progress = next;
        }
        if let Progress::Ready(_) = &*progress {
            let not_asked = Progress::Failed("it could not be asked".to_owned());
            if let Progress::Ready(manager) = std::mem::replace(&mut *progress, not_asked) {
                *progress = Progress::Asked(self.ask(manager)?);
            }
            return Ok(None);
        }
        match &*progress {
            Progress::Known(contact) => Ok(Some(self.location(contact))),
            Progress::Failed(reason) => Err(self.failure(reason)),
            Progress::Ready(_) | Progress::Asked(_) => Ok(None),
        }
    }

    /// Has a thread ask where the server is and call `tell` with it, for a rank that cannot join:
    /// the process manager answers once all others have come, and not all may be on their way yet.
    /// Nothing is told when this process begins to join once more. Waits for that, at most until
    /// `limit`.
    pub(in crate::bootstrap) fn tell(
        self: &Arc<Session>,
        limit: Deadline,
        tell: impl FnOnce(ServerLocation) + Send + 'static,
    ) {
        let session = Arc::clone(self);
        let attempt = self.attempts.load(Ordering::Relaxed);
        let (told, ended) = mpsc::channel::<()>();
        let started = start_thread(move || {
            let _told = told;
            let server = loop {
                match session.poll() {
                    Ok(Some(server)) => break server,
                    Ok(None) => system::wait(&[(session.as_fd(), false)], Deadline::Never, None),
                    // The others hear of that too.
                    Err(_) => return,
                }
            };
            if session.attempts.load(Ordering::Relaxed) == attempt {
                tell(server);
            }
        });
        if started.is_ok() {
            let _ = ended.recv_timeout(limit.remaining().unwrap_or_default());
        }
    }

    /// Readable when [`Session::poll`] has something to say.
    pub(in crate::bootstrap) fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// What is waited for.
    pub(in crate::bootstrap) fn awaited(&self) -> String {
        format!(
            "all {} ranks of job {} to call proc_init: {} then tells where they meet",
            self.identity.size, self.identity.id, self.manager
        )
    }

    /// Has a thread exchange the contact.
    fn ask(
        &self,
        mut manager: Box<dyn ProcessManager>,
    ) -> Result<Receiver<std::result::Result<Contact, String>>> {
        // The others wait for what rank 0 has to tell, and be it that it has nothing.
        let own = (self.identity.rank == Rank(0))
            .then(|| own_contact().map_err(|error| error.to_string()));
        let (tell, answer) = mpsc::channel();
        let waker = self.waker.lock().take();
        start_thread(move || {
            let found = exchange(&mut *manager, own);
            take_leave(&mut manager);
            // A process that does not wait any more has ended its start.
            let _ = tell.send(found);
            drop(waker);
        })?;
        Ok(answer)
    }

    fn location(&self, contact: &Contact) -> ServerLocation {
        let name = derived_name(format!("{} {:?}", self.identity.id, contact.key.0).as_bytes());
        let host = contact.addresses.first().map_or("rank 0".to_owned(), |ip| ip.to_string());
        let here = contact.machine == this_machine::identity() || self.identity.rank == Rank(0);
        let hub = HubLocation {
            host,
            port: None,
            here,
            audience: Audience::OtherHosts,
            key: Some(contact.key.clone()),
            munge: false,
            addresses: contact.addresses.clone(),
        };
        ServerLocation::OverHosts { name, hub }
    }

    fn failure(&self, reason: &str) -> Error {
        Error::Meeting {
            reason: format!(
                "{} did not tell where the ranks of job {} meet: {reason}; start the job again, \
                 with gaspi_run if it stays so",
                self.manager, self.identity.id
            ),
        }
    }
}

/// What rank 0 tells the others.
fn own_contact() -> Result<Contact> {
    let restrictions = Restrictions::from_environment()?;
    let offer = addresses::offered(&interfaces::list(), &restrictions, Audience::OtherHosts)?;
    Ok(Contact {
        key: Key(random()?),
        machine: this_machine::identity(),
        addresses: offer.addresses,
    })
}

fn exchange(
    manager: &mut dyn ProcessManager,
    own: Option<std::result::Result<Contact, String>>,
) -> std::result::Result<Contact, String> {
    if let Some(own) = &own {
        let room = manager.value_max();
        let value = match own {
            Ok(contact) => contact.encode(room),
            Err(reason) => contact::encode_failure(reason, room),
        };
        manager.publish(&value)?;
    }
    manager.fence()?;
    own.unwrap_or_else(|| Contact::decode(&manager.read()?))
}

/// Closes the connection; at the exit if MPI in this process may still come to need it.
fn take_leave(manager: &mut Box<dyn ProcessManager>) {
    if Mpi::look_up() != Mpi::Loaded {
        return manager.close();
    }
    let kept = Mutex::new(std::mem::replace(manager, Box::new(Closed)));
    mpi::at_exit(Box::new(move || kept.lock().close()));
}

/// In the place of a process manager that is needed no more.
struct Closed;

impl ProcessManager for Closed {
    fn name(&self) -> String {
        "a connection that was closed".to_owned()
    }

    fn value_max(&self) -> usize {
        0
    }

    fn publish(&mut self, _: &str) -> std::result::Result<(), String> {
        Err(self.name())
    }

    fn fence(&mut self) -> std::result::Result<(), String> {
        Err(self.name())
    }

    fn read(&mut self) -> std::result::Result<String, String> {
        Err(self.name())
    }

    fn close(&mut self) {}
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
