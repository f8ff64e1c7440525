//! Procedures about other ranks: connect, ping, kill (GASPI 17.1, 5.3 and 5.4).

use crate::callback::may_wait;
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::process;
use crate::runtime::{Inner, Runtime};
use crate::timeout::{Deadline, Timeout};
use crate::transport::Link;
use crate::transport::requests::RequestKey;
use crate::transport::shm::area::liveness;
use crate::wait::Call;
use crate::wait::waiting;
use crate::wire::message::{Message, RemoteCall};
use std::net::SocketAddr;
use std::time::Duration;

/// How long the end of a process may take after SIGKILL.
const KILL_LIMIT: Duration = Duration::from_millis(200);
/// How long a library may take to obey a kill without a timeout: a stopped process never does.
const OBEY_LIMIT: Duration = Duration::from_secs(1);

impl Inner {
    /// Asks the library of `rank` for an answer.
    fn ask(&self, rank: Rank, deadline: Deadline, call: Call) -> Result<()> {
        self.check_open()?;
        self.ranks.check_rank(rank)?;
        if rank == self.ranks.me {
            return Ok(());
        }
        let key = RequestKey::Ping { rank };
        let pending = self.call(key, rank, deadline, RemoteCall::Ping, &[])?;
        let waiting = waiting(call, rank.0);
        self.finish_call(key, rank, pending, deadline, waiting).map(|_| ())
    }

    fn end_process(&self, rank: Rank) {
        let card = self.ranks.cards.at(rank);
        let visible = self.ranks.is_local(rank) && card.pid() != 0;
        if let (true, Ok(Some(pidfd))) = (visible, process::open(card.pid(), card.start_time())) {
            process::signal(&pidfd, libc::SIGKILL);
        } else if let Some(membership) = self.membership.lock().as_ref() {
            // Not visible from here: whoever started it can end it. Where nobody did, the timeout
            // says so.
            let _ = membership.request_kill(rank);
        }
    }
}

impl Inner {
    /// How a rank of the job is reached.
    pub(crate) fn link_to(&self, rank: Rank) -> Link {
        self.endpoints.link(self, rank)
    }
}

impl Runtime {
    /// How `rank` is reached.
    ///
    /// # Errors
    /// [`Error::InvalidRank`].
    pub fn link(&self, rank: Rank) -> Result<Link> {
        self.inner().ranks.check_rank(rank)?;
        Ok(self.inner().link_to(rank))
    }

    /// The ports of RDMA devices that this rank has found when it began, in words: whether each is
    /// used, and why. None where it uses no device.
    pub fn rdma_ports(&self) -> Vec<String> {
        let device = self.inner().endpoints.device.as_ref();
        device.map(|device| device.report()).unwrap_or_default()
    }

    /// The address at which `rank` is reached, if that is by TCP and it is connected.
    ///
    /// # Errors
    /// [`Error::InvalidRank`].
    pub fn address_of(&self, rank: Rank) -> Result<Option<SocketAddr>> {
        self.inner().ranks.check_rank(rank)?;
        Ok(self.inner().endpoint(rank).address())
    }

    /// Connects to `rank`; its library answers, not its program (GASPI 17.1, 5.4.1). A success
    /// after a repaired path makes the rank healthy again.
    ///
    /// # Errors
    /// [`Error::InvalidRank`], [`Error::Timeout`], [`Error::RankDied`], [`Error::RankLeft`].
    pub fn connect(&self, rank: Rank, timeout: Timeout) -> Result<()> {
        may_wait(timeout, Call::Connect.name())?;
        self.inner().ask(rank, timeout.deadline(), Call::Connect)?;
        self.inner().ranks.mend(rank);
        Ok(())
    }

    /// Stops using the connection with `rank`; the next request opens it again (GASPI 17.1, 5.4.2).
    /// One that `rank` also uses, of another node, is closed once it does not any more.
    ///
    /// # Errors
    /// [`Error::InvalidRank`], [`Error::Timeout`] while requests to it are under way.
    pub fn disconnect(&self, rank: Rank, timeout: Timeout) -> Result<()> {
        let inner = self.inner();
        inner.check_open()?;
        inner.ranks.check_rank(rank)?;
        may_wait(timeout, "disconnect")?;
        let waiting = waiting(Call::Connect, rank.0);
        let idle = || !inner.queues.iter().any(|queue| queue.is_pending(rank));
        let drained = inner.until(timeout.deadline(), waiting, || {
            // Another thread may have ended this rank's part in the job.
            let left = inner.check_open().err().map(Err);
            left.or_else(|| (idle() && inner.endpoint(rank).release()).then_some(Ok(())))
        });
        let pending = || Err(Error::Timeout { pending: format!("requests to {rank}") });
        drained.unwrap_or_else(pending)
    }

    /// Whether the library of `rank` answers. A stopped process does not.
    ///
    /// # Errors
    /// [`Error::InvalidRank`], [`Error::Timeout`], [`Error::RankDied`], [`Error::RankLeft`].
    pub fn ping(&self, rank: Rank, timeout: Timeout) -> Result<()> {
        may_wait(timeout, Call::Ping.name())?;
        self.inner().ask(rank, timeout.deadline(), Call::Ping)
    }

    /// Ends the process of `rank` (GASPI 17.1, 5.3.5): its library exits at once with status 255;
    /// one that does not within the timeout is killed by SIGKILL.
    ///
    /// # Errors
    /// [`Error::InvalidRank`] also for this rank itself; [`Error::RankLeft`]; [`Error::Timeout`] if
    /// it lives on, or for one attempt.
    pub fn kill(&self, rank: Rank, timeout: Timeout) -> Result<()> {
        let inner = self.inner();
        inner.check_open()?;
        inner.ranks.check_rank(rank)?;
        if rank == inner.ranks.me {
            let reason = "a rank cannot kill itself by proc_kill".to_owned();
            return Err(Error::InvalidRank { rank, reason });
        }
        let ended = || match inner.ranks.liveness(rank) {
            liveness::DEAD => Some(Ok(())),
            liveness::LEFT => {
                let pending = "proc_kill".to_owned();
                Some(Err(Error::RankLeft { rank, pending }))
            }
            _ => None,
        };
        if let Some(outcome) = ended() {
            return outcome;
        }
        may_wait(timeout, Call::Kill.name())?;
        let deadline = match timeout {
            Timeout::Block => Deadline::Never.at_most(OBEY_LIMIT),
            limited => limited.deadline(),
        };
        let waiting = waiting(Call::Kill, rank.0);
        match inner.send_message(rank, &Message::Kill, timeout.deadline()) {
            Err(Error::RankDied { .. }) => return Ok(()),
            Err(error @ (Error::RankLeft { .. } | Error::NotInitialised)) => return Err(error),
            // Its library cannot be told, so that it does not obey.
            Err(_) => {}
            Ok(()) => {
                if let Some(outcome) = inner.until(deadline, waiting, ended) {
                    return outcome;
                }
            }
        }
        let pending = format!("the end of {rank}");
        if timeout == Timeout::Test {
            return Err(Error::Timeout { pending });
        }
        inner.end_process(rank);
        let limit = Deadline::Never.at_most(KILL_LIMIT);
        inner.until(limit, waiting, ended).unwrap_or(Err(Error::Timeout { pending }))
    }
}
