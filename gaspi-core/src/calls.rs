//! Calls that the library of another rank answers, from the caller's side: starting them, waiting
//! for the answer, and what an answer that does not come means.

use crate::control::belongs_to_data;
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::runtime::Inner;
use crate::statistics::Counter;
use crate::timeout::Deadline;
use crate::transport::RequestFailure;
use crate::transport::requests::{PendingCall, RequestKey};
use crate::transport::verbs::Verbs;
use crate::wait::{Call, Waiting, waiting};
use crate::wire::message::{Message, RemoteCall};
use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// How long the end of a rank may stay unexplained: the news of a death come soon after.
const EXPLAIN: Duration = Duration::from_secs(1);

/// For how long the ends of peers are waited for whose connections broke: in all, for a call that
/// asks several.
#[derive(Debug, Default)]
pub(crate) struct Patience(Cell<Option<Deadline>>);

impl Patience {
    fn limit(&self, deadline: Deadline) -> Deadline {
        let end = self.0.get().unwrap_or_else(|| Deadline::Never.at_most(EXPLAIN));
        self.0.set(Some(end));
        deadline.at_most(end.remaining().unwrap_or(EXPLAIN))
    }
}

impl Inner {
    /// Gives the news of `rank`'s end a moment to arrive.
    pub(crate) fn explain(&self, rank: Rank, deadline: Deadline) {
        let deadline = deadline.at_most(EXPLAIN);
        let waiting = waiting(Call::Connect, rank.0);
        self.until(deadline, waiting, || self.ranks.check_alive(rank, "").is_err().then_some(()));
    }

    /// Why a call fails that needs all of `ranks`. One of them that has left may have given up
    /// since another one died, whose death is known here a moment later.
    pub(crate) fn cause(
        &self,
        error: Error,
        (what, waiting): (&str, Waiting),
        ranks: &[Rank],
        deadline: Deadline,
    ) -> Error {
        if deadline == Deadline::Now || !matches!(error, Error::RankLeft { .. }) {
            return error;
        }
        let dead = self.until(deadline.at_most(EXPLAIN), waiting, || self.ranks.dead_among(ranks));
        dead.map_or(error, |rank| self.ranks.died(rank, what))
    }

    /// A rank that ends refuses connections a moment before its end is known: gives the news that
    /// moment, so that an error can tell of it.
    fn await_news_if_refused(&self, rank: Rank, deadline: Deadline) {
        let may_wait = deadline != Deadline::Now;
        if may_wait && matches!(self.endpoint(rank).connect(), Err(Error::System { .. })) {
            self.explain(rank, deadline);
        }
    }

    /// Sends a message that belongs to no queue.
    pub(crate) fn send_message(
        &self,
        rank: Rank,
        message: &Message,
        deadline: Deadline,
    ) -> Result<()> {
        self.await_news_if_refused(rank, deadline);
        if matches!(message, Message::Group(_)) && !self.ranks.is_local(rank) {
            self.count(Counter::GroupMessages, 1);
        }
        let endpoint = self.endpoint(rank);
        if belongs_to_data(message) { endpoint.send_data(message) } else { endpoint.send(message) }
    }

    /// Why the device cannot carry data to `rank`, if it never will.
    pub(crate) fn cannot_carry(&self, verbs: Verbs<'_>, rank: Rank) -> Option<Error> {
        let why = verbs.carries_messages_to(rank).err()?;
        let reason = format!("the RDMA device cannot carry data to it: {why}");
        Some(self.ranks.refused(rank, reason))
    }

    /// The error of a call whose timeout ran out before there was a pair for messages.
    pub(crate) fn awaits_device(rank: Rank) -> Error {
        Error::Timeout { pending: format!("a connection by RDMA with {rank}") }
    }

    /// Waits until the device carries messages to `rank`, where data may go by it alone.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::Refused`] where a pair cannot be made, which is tried anew by
    /// the next call; the rank has ended.
    pub(crate) fn await_device(
        &self,
        rank: Rank,
        deadline: Deadline,
        waiting: Waiting,
    ) -> Result<()> {
        let verbs = self.endpoints.verbs(self).filter(|verbs| verbs.table.has_to_carry_messages());
        let Some(verbs) = verbs.filter(|verbs| !verbs.stream.connections.is_carried(rank)) else {
            return Ok(());
        };
        // One that could not be made leaves an error, and is not tried again and again.
        let is_released = || {
            let table = verbs.stream;
            !table.connections.has_active(rank) && table.dialing.last_error(rank).is_none()
        };
        let carried = loop {
            // A device carries a connection. One that cannot be made shows below.
            let is_made = self.endpoint(rank).connect().is_ok();
            let carried = self.until(deadline, waiting, || match verbs.carries_messages_to(rank) {
                Ok(true) => Some(Ok(true)),
                // The peer has released it.
                Ok(false) if is_made && is_released() => Some(Ok(false)),
                Ok(false) => self.ranks.check_alive(rank, waiting.call.name()).err().map(Err),
                Err(_) => self.cannot_carry(verbs, rank).map(Err),
            });
            if !matches!(carried, Some(Ok(false))) {
                break carried.map(|carried| carried.map(drop));
            }
        };
        let outcome = carried.unwrap_or_else(|| Err(Inner::awaits_device(rank)));
        if matches!(outcome, Err(Error::Refused { .. })) {
            verbs.forget_refusal(rank);
        }
        outcome
    }

    /// Starts a call that carries data, or continues one whose timeout ran out.
    ///
    /// # Errors
    /// As [`await_device`](Inner::await_device).
    pub(crate) fn call_with_data(
        &self,
        key: RequestKey,
        rank: Rank,
        deadline: Deadline,
        call: RemoteCall,
        waiting: Waiting,
    ) -> Result<Arc<PendingCall>> {
        if !self.endpoints.requests.is_kept(&key) {
            self.await_device(rank, deadline, waiting)?;
        }
        self.call(key, rank, deadline, call, &[])
    }

    /// Starts a call, or continues one whose timeout ran out.
    pub(crate) fn call(
        &self,
        key: RequestKey,
        rank: Rank,
        deadline: Deadline,
        call: RemoteCall,
        files: &[BorrowedFd<'_>],
    ) -> Result<Arc<PendingCall>> {
        self.await_news_if_refused(rank, deadline);
        self.endpoint(rank).call(key, call, files)
    }

    /// Waits for the answer to a call. A timeout leaves it under way.
    pub(crate) fn finish_call(
        &self,
        key: RequestKey,
        rank: Rank,
        call: Arc<PendingCall>,
        deadline: Deadline,
        waiting: Waiting,
    ) -> Result<u64> {
        let patience = Patience::default();
        self.finish_one_of(key, rank, call, deadline, waiting, &patience)
    }

    /// The same for one of several calls, which share the patience with connections that broke.
    #[allow(clippy::too_many_arguments, reason = "what `finish_call` takes, and the patience")]
    pub(crate) fn finish_one_of(
        &self,
        key: RequestKey,
        rank: Rank,
        call: Arc<PendingCall>,
        deadline: Deadline,
        waiting: Waiting,
        patience: &Patience,
    ) -> Result<u64> {
        let waiting = Waiting { peer: Some(rank), ..waiting };
        let outcome = self.until(deadline, waiting, || {
            let answered = || call.outcome().map(Ok);
            // Another thread may have ended this rank's part in the job.
            let left = || self.check_open().err().map(Err);
            // A forked child may hold the connection of somebody who has left.
            answered().or_else(left).or_else(|| match self.ranks.check_alive(rank, "") {
                Ok(()) => None,
                Err(_) => Some(answered().unwrap_or(Ok(Err(RequestFailure::Lost)))),
            })
        });
        let Some(outcome) = outcome else {
            self.endpoints.requests.keep(key, call);
            return Err(Error::Timeout { pending: format!("an answer of {rank}") });
        };
        match outcome? {
            Ok(value) => Ok(value),
            Err(RequestFailure::Refused(reason)) => Err(self.ranks.refused(rank, reason)),
            Err(RequestFailure::Lost | RequestFailure::LostRun { .. }) => {
                // A rank of this node that turned the connection away has said why.
                let said = self.endpoint(rank).last_error().filter(|_| self.ranks.is_local(rank));
                let by_device = matches!(key, RequestKey::Atomic { .. });
                let said = said.or_else(|| self.endpoints.device_error(rank).filter(|_| by_device));
                if said.is_none() || rank != self.ranks.me && by_device {
                    self.ranks.may_have_ended(rank);
                    self.explain(rank, patience.limit(deadline));
                }
                self.ranks.check_alive(rank, waiting.call.name())?;
                let reason = said.unwrap_or_else(|| "the connection to it broke".to_owned());
                Err(self.ranks.refused(rank, reason))
            }
        }
    }
}
