//! What transports tell this rank, passed on to the parts that it concerns.
//!
//! Nothing here waits: it runs in whichever thread polls.

use super::Inner;
use crate::bootstrap::Membership;
use crate::config::{CHANNELS, STATUS};
use crate::control::handlers::Reaction;
use crate::ids::{QueueId, Rank};
use crate::os::process;
use crate::progress::thread::Served;
use crate::queue::Loss;
use crate::ranks::Ranks;
use crate::segment::own::Memory;
use crate::sync::lane::LaneCarrier;
use crate::sync::{AtomicU64, MutexGuard};
use crate::timeout::Deadline;
use crate::transport::KILLED;
use crate::transport::endpoint::CarrierKind;
use crate::transport::shm::area::liveness;
use crate::transport::software_target::Stopped;
use crate::transport::tcp::Tcp;
use crate::transport::verbs::Verbs;
use crate::transport::{Behind, CameByEnded, Carried, ConnectionLoss, RequestFailure, Upcalls};
use crate::wire::message::{LastStep, Message, PairOffer, Pairing, Register, Stream};
use std::os::fd::OwnedFd;

impl Upcalls for Inner {
    fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    fn memory(&self) -> &Memory {
        &self.memory
    }

    fn expects(&self, stream: Stream) -> bool {
        match self.queues.get(stream.queue.index()) {
            Some(queue) => queue.expects(stream.generation),
            None => matches!(stream.queue, CHANNELS | STATUS),
        }
    }

    fn lane_carrier(&self, peer: Rank, queue: QueueId) -> Option<&LaneCarrier<AtomicU64>> {
        self.queues.get(queue.index()).map(|queue| queue.carrier(peer))
    }

    fn is_stale(&self, peer: Rank, behind: Behind) -> bool {
        match behind {
            // What was lost shows before a new connection can be used.
            Behind::Queue(QueueId(queue)) => {
                self.queues.get(usize::from(queue)).is_some_and(|queue| queue.has_lost(peer))
            }
            Behind::Channel { losses } => self.channels.losses(peer) != losses,
        }
    }

    fn losing(&self, peer: Rank, stream: Stream) {
        if let Some(queue) = self.queues.get(stream.queue.index()) {
            queue.mark_losing(peer, stream.generation);
        }
    }

    /// Requests of a queue have ended.
    fn completed(
        &self,
        peer: Rank,
        stream: Stream,
        count: u32,
        outcome: Result<(), RequestFailure>,
    ) {
        if stream.queue == STATUS {
            // Who reads asks whether it is there; nothing depends on it.
            return;
        }
        let lost = match outcome {
            Err(RequestFailure::Lost) => Some(Loss { requests: count, was_marked: false }),
            Err(RequestFailure::LostRun { requests }) => Some(Loss { requests, was_marked: true }),
            _ => None,
        };
        let failed = outcome.err().map(|failure| match failure {
            RequestFailure::Refused(reason) => format!("{peer} refused: {reason}"),
            RequestFailure::Lost | RequestFailure::LostRun { .. } => {
                match self.ranks.liveness(peer) {
                    liveness::LEFT => format!("{peer} has left the job"),
                    liveness::DEAD => self.ranks.death_of(peer),
                    _ => {
                        let host = self.ranks.host_of(peer);
                        match self.endpoint(peer).last_error() {
                            Some(why) => format!("{peer} on {host} cannot be reached: {why}"),
                            None => format!("the connection to {peer} on {host} broke"),
                        }
                    }
                }
            }
        });
        // First: a thread that waits for the queue may see the failure at once. What was purged is
        // nobody's failure any more: the peer may have been connected again since.
        if let Some(reason) = failed.as_deref().filter(|_| self.expects(stream)) {
            self.request_failed(peer, stream, reason, lost.is_none());
        }
        match self.queues.get(stream.queue.index()).map(|queue| (queue, lost)) {
            Some((queue, Some(lost))) => {
                let reason = failed.as_deref().unwrap_or_default();
                queue.lose(peer, stream.generation, (count, lost), reason);
            }
            Some((queue, None)) => {
                queue.complete(peer, stream.generation, count, failed.as_deref())
            }
            None if failed.is_some() => self.channels.zero_copy.lost(stream.generation),
            None => self.channels.zero_copy.acknowledged(stream.generation),
        }
        self.ranks.wake_own();
    }

    fn carried(&self, peer: Rank, by_device: bool, carried: Carried) {
        let carrier = if by_device { CarrierKind::Verbs } else { CarrierKind::Stream };
        self.count_carried(peer, carrier, carried);
    }

    fn refused(&self, peer: Rank, stream: Stream, reason: &str) {
        // Only what has not been purged.
        if self.expects(stream) {
            // First: a thread that waits for the queue may see the failure at once.
            self.request_failed(peer, stream, reason, true);
        }
        if let Some(queue) = self.queues.get(stream.queue.index()) {
            queue.fail_of(stream.generation, &format!("{peer} refused: {reason}"));
        }
        self.ranks.wake_own();
    }

    fn catch_up(&self) {
        if let Some(verbs) = self.endpoints.verbs(self) {
            verbs.catch_up();
        }
    }

    fn make_visible(&self) {
        if let Some(verbs) = self.endpoints.verbs(self) {
            verbs.make_visible();
        }
    }

    fn ended_messages(&self, peer: Rank, attempt: u32) {
        if let Some(verbs) = self.endpoints.verbs(self) {
            verbs.messages_ended(peer, attempt);
        }
    }

    fn came_by_ended(&self, peer: Rank, attempt: u32, number: u32) -> CameByEnded {
        let verbs = self.endpoints.verbs(self);
        verbs.map_or(CameByEnded::NotOver, |verbs| verbs.came_by_ended(peer, attempt, number))
    }

    fn take_incoming(&self, peer: Rank, number: u32) -> Option<Stopped> {
        self.endpoints.verbs(self)?.take_incoming(peer, number)
    }

    fn continue_incoming(&self, peer: Rank, from: u32, to: u32) {
        if let Some(verbs) = self.endpoints.verbs(self) {
            verbs.continue_incoming(peer, from, to);
        }
    }

    fn message(&self, peer: Rank, message: Message) {
        match message {
            Message::Group(message) => {
                let reaction = self.control.handle(peer, message, self.ranks.size);
                self.react(reaction);
            }
            Message::Revoke { segment, generation } => self.revoked(peer, segment, generation),
            Message::Withhold { request } => {
                if let Some(connection) = self.passive.mailbox.withhold(peer, request) {
                    // Its sender may wait until nobody can receive it.
                    self.endpoints.answer(connection, request, Ok(0));
                }
            }
            Message::Pairing(pairing) => match self.endpoints.verbs(self) {
                Some(verbs) => verbs.told(peer, pairing),
                None => self.without_device(peer, pairing),
            },
            Message::Closed { lease } => self.channels.closed_by(peer, lease),
            Message::Kill => process::exit_now(KILLED),
        }
    }

    fn passive(&self, peer: Rank, connection: u64, request: u64, message: Vec<u8>) {
        self.passive.mailbox.post(peer, connection, request, message);
        self.ranks.wake_own();
    }

    fn import(&self, peer: Rank, register: &Register, files: &[OwnedFd]) -> Result<u64, String> {
        self.import_segment(peer, register, files)
    }

    fn doubted(&self, peer: Rank) {
        if let Some(verbs) = self.endpoints.verbs(self) {
            verbs.note_loss(peer);
        }
        self.channels.note_break(peer);
    }

    fn lost(&self, peer: Rank, loss: ConnectionLoss) {
        match (self.endpoints.verbs(self), loss) {
            // What was begun before it was in doubt counts.
            (Some(verbs), ConnectionLoss::Broken) => verbs.reset_lost(peer),
            // What the peer was to be told of them has not been said.
            (Some(verbs), ConnectionLoss::NotMade { settles_pairs: true }) => {
                verbs.disconnect(peer)
            }
            _ => {}
        }
        self.channels.lost(peer);
        self.ranks.wake_own();
        if loss == ConnectionLoss::Broken {
            self.send_again(peer);
        }
    }

    fn send_again(&self, peer: Rank) {
        self.resend(peer);
        self.tell_closed_again(peer);
        self.tell_losses(peer);
    }

    fn connected(&self, peer: Rank) {
        self.tell_losses(peer);
    }

    fn ended(&self, peer: Rank) {
        let marked = self.ranks.note_end(peer);
        if marked && self.ranks.liveness(peer) == liveness::DEAD {
            let card = self.ranks.cards.at(peer);
            log::warn!(
                "watching {peer}: its process {} on {} has died, calls that need it will fail; go \
                 on in a group of the others",
                card.pid(),
                card.host()
            );
        }
        self.endpoint(peer).disconnect();
        if self.ranks.liveness(peer) == liveness::LEFT {
            self.pass_around(peer);
        }
        self.ranks.forget_targets(peer);
        self.channels.forget(peer, None);
        self.ranks.wake_own();
    }

    fn last_steps(&self, rank: Rank) -> Vec<LastStep> {
        self.last_steps_of(rank)
    }

    fn leaves(&self, rank: Rank) {
        self.pass_around(rank);
    }
}

impl Served for Inner {
    fn tcp(&self) -> Tcp<'_> {
        Inner::tcp(self)
    }

    fn verbs(&self) -> Option<Verbs<'_>> {
        self.endpoints.verbs(self)
    }

    fn membership(&self) -> MutexGuard<'_, Option<Membership>> {
        self.membership.lock()
    }

    fn affordable_pidfds(&self) -> u64 {
        Inner::affordable_pidfds(self)
    }
}

impl Inner {
    /// Answers a peer that would have a device carry a lane.
    fn without_device(&self, peer: Rank, pairing: Pairing) {
        if let Pairing::Offer(PairOffer { queue, attempt, .. }) = pairing {
            let reason = format!("{} has no RDMA device", self.ranks.me);
            let ended = Message::Pairing(Pairing::Ended { queue, attempt, refuses: true, reason });
            // It finds out by itself if it cannot be told.
            let _ = self.endpoint(peer).send(&ended);
        }
    }

    /// Does what a handler of the groups has found out.
    fn react(&self, reaction: Reaction) {
        let Reaction { wake, advance, onward, tell_all, commits, again } = reaction;
        if let Some(onward) = onward {
            self.pass_on(onward);
        }
        if let Some((group, step)) = advance {
            self.advance_step(group, step);
        }
        if let Some((group, step)) = tell_all {
            self.tell_all_of_arrival(group, step);
        }
        if let Some(group) = commits {
            if let Some(peer) = again {
                self.resend_commits(group, peer);
            }
            self.send_due(group, Deadline::Now);
        }
        if wake {
            self.ranks.wake_own();
        }
    }
}
