//! Pairs as they are made and ended: what the machine of [`pairing`](super::pairing) says, carried
//! out by the device, and told to the peer by the streams.

use super::budget::{NotMade, PairKind};
use super::ended::{Again, Ended, Failure};
use super::going_back::PEER_IS_GONE;
use super::lane::{Lane, LaneState};
use super::pairing::{PairState, Step};
use super::queue_pair::QueuePair;
use super::{ATOMICS, DeviceTable, STREAM, VISIBLE, Verbs, select, subnet};
use crate::ids::{QueueId, Rank};
use crate::os::cancel;
use crate::sync::{MutexGuard, Ordering};
use crate::transport::tcp::send_queue::Outgoing;
use crate::wire::message::{Message, PairOffer, Pairing};
use std::collections::VecDeque;

/// Why pairs end with their connection.
const LOST: &str = "the connection with it was lost";

impl Verbs<'_> {
    /// The peer says something of a pair.
    pub(crate) fn told(self, peer: Rank, pairing: Pairing) {
        let queue = match &pairing {
            Pairing::Offer(offer) => offer.queue,
            Pairing::Connected { queue, .. }
            | Pairing::Ended { queue, .. }
            | Pairing::Lost { queue, .. } => *queue,
        };
        let foreign = queue == VISIBLE && peer != self.up.ranks().me;
        if queue.index() >= self.table.lanes.len() || foreign {
            return;
        }
        if let Pairing::Ended { .. } | Pairing::Lost { .. } = pairing {
            // This rank's own device may tell the reason, where the peer only knows of the end.
            self.look_ahead_of(peer);
        }
        let lane = self.table.lane(queue, peer);
        let mut state = lane.lock();
        let steps = match pairing {
            Pairing::Offer(offer) => state.pairing.on_offer(offer),
            Pairing::Connected { attempt, .. } => state.pairing.on_connected(attempt),
            Pairing::Ended { attempt, refuses, reason: told, .. } => {
                let reason = state.failed_by_device().unwrap_or(told);
                // The peer has been the first to find that there is no answer.
                let is_unanswered = refuses && state.pairing.is_proving(attempt);
                let steps = state.pairing.on_ended(attempt, &reason, refuses);
                if is_unanswered {
                    self.retry_later(lane, &mut state);
                }
                steps
            }
            Pairing::Lost { attempt, .. } => {
                let reason = state.failed_by_device();
                state.pairing.on_lost(attempt, reason.as_deref().unwrap_or(LOST))
            }
        };
        let mut ended = Ended::default();
        self.carry_out(lane, &mut state, steps, &mut ended);
        if state.has_waiting() && !state.pairing.is_up() && !state.is_diverted() {
            // What has been posted since the last pair ended.
            let steps = state.pairing.begin();
            self.carry_out(lane, &mut state, steps, &mut ended);
        }
        let tries = || lane.user.takes_try() || self.table.has_to_carry_messages();
        if queue == STREAM && state.pairing.is_idle() && tries() {
            self.stream.connections.note_news();
            self.stream.sets.wakeup.wake();
        }
        self.divert(lane, state);
        self.speak(lane);
        ended.tell(self.up, peer);
        // Calls may wait for a pair, which may have been refused.
        if matches!(queue, ATOMICS | STREAM) {
            self.up.ranks().wake_own();
        }
    }

    /// Something of a lane has failed here: whoever looks next takes its pair down, behind what has
    /// come by it.
    pub(super) fn fail(self, mut state: MutexGuard<'_, LaneState>, reason: &str) {
        state.note_failure(reason, Again::AtOnce);
        drop(state);
        self.table.has_stalled.store(true, Ordering::Release);
        self.stream.sets.wakeup.wake();
    }

    /// Takes the pair of a lane down that has failed and been stopped.
    pub(super) fn end_failed(self, lane: &Lane) {
        let mut state = lane.lock();
        let counts = lane.queue == STREAM && state.has_failed_itself();
        let Some(Failure { reason, again, .. }) = state.take_failure() else { return };
        // Where nothing else may carry messages they are errors, which tell why.
        let was_last = counts && lane.user.failures.lock().note();
        // The rank whose end it was tries another one, not the one that has heard of it.
        lane.user.try_again_later(reason != PEER_IS_GONE);
        if was_last && !self.table.has_to_carry_messages() {
            log::warn!(
                "messages to {} go by TCP from now on: pairs for them have failed again and again, \
                 the last one since {reason}",
                lane.peer
            );
        }
        // It may tell why there will be no other pair, which halves may wait for.
        let follows = reason == PEER_IS_GONE && self.table.has_to_carry_messages();
        let steps = match again {
            Again::Later | Again::NotByTime => state.pairing.refuse(&reason),
            Again::AtOnce if follows => state.pairing.follow(&reason),
            Again::AtOnce => state.pairing.fail(&reason),
        };
        if again == Again::Later {
            self.retry_later(lane, &mut state);
        }
        let mut ended = Ended::default();
        self.carry_out(lane, &mut state, steps, &mut ended);
        if lane.queue == STREAM && lane.user.failures.lock().are_too_many() {
            self.abort_waiting(lane);
        }
        self.divert(lane, state);
        self.speak(lane);
        ended.tell(self.up, lane.peer);
    }

    /// The connection with `peer` was lost, or it has ended: pairs begun before go with it, behind
    /// all that has come. Whoever looks next does that, without what the caller holds; pairs that
    /// have been begun until then are no part of the loss.
    pub(crate) fn disconnect(self, peer: Rank) {
        self.note_loss(peer);
        self.reset_lost(peer);
    }

    /// The connection with `peer` was lost: pairs that have been begun by now go with it. What is
    /// begun later is settled on another connection, and the peer may use it before this rank
    /// knows that the peer lives.
    pub(crate) fn note_loss(self, peer: Rank) {
        self.table.used_with(peer).for_each(|lane| lane.shown.attempts.lose());
    }

    /// Whoever looks next takes down the pairs that went with a connection to `peer`.
    pub(crate) fn reset_lost(self, peer: Rank) {
        self.table.resets.peers.lock().push(peer);
        self.table.resets.any.store(true, Ordering::Release);
        self.up.ranks().wake_own();
        self.stream.sets.wakeup.wake();
    }

    /// This rank leaves: all pairs of queues go, those of connections remain.
    pub(crate) fn close_queues(self) {
        self.poll_for_a_while();
        self.table.end_vouching();
        let of_queue = |lane: &&Lane| lane.queue != STREAM;
        self.table
            .used(None)
            .filter(of_queue)
            .for_each(|lane| self.reset_lane(lane, lane.lock(), false));
    }

    /// This rank has left: all pairs go.
    pub(crate) fn close(self) {
        self.table.used(None).for_each(|lane| self.reset_lane(lane, lane.lock(), false));
    }

    /// Nothing more comes by pairs that went with the connection to `peer`.
    pub(super) fn stop_lost(self, peer: Rank) {
        for lane in self.table.used_with(peer) {
            let state = lane.lock();
            if lane.shown.attempts.is_lost(state.pairing.attempt()) {
                state.stop();
            }
        }
    }

    /// Takes down pairs with ranks that have ended, whoever of this node has heard of that; whether
    /// there were any. Lanes are looked at anew only where there is news of a death.
    pub(super) fn reset_ended(self) -> bool {
        let (news, handled) = (self.up.ranks().area.death_news(), &self.table.resets.deaths);
        if handled.load(Ordering::Relaxed) == news {
            return false;
        }
        let _uncancelled = cancel::hold_off();
        let ended = |lane: &&Lane| self.up.ranks().check_alive(lane.peer, "a request").is_err();
        let busy = |lane: &&Lane| {
            let state = lane.lock();
            state.pair.is_some() || !state.is_idle()
        };
        let found: Vec<Rank> =
            self.table.used(None).filter(ended).filter(busy).map(|lane| lane.peer).collect();
        found.iter().for_each(|peer| self.reset(*peer, false));
        if found.is_empty() {
            // Who posts from now on sees these deaths: it has the lane's lock behind this look.
            handled.store(news, Ordering::Relaxed);
        }
        !found.is_empty()
    }

    /// Takes down the pairs that went with a connection to `peer`, and tells it where it is to hear
    /// of that and lives. All pairs with one that has ended go.
    pub(super) fn reset(self, peer: Rank, tells: bool) {
        let lives = self.up.ranks().check_alive(peer, "a request").is_ok();
        for lane in self.table.used_with(peer) {
            let state = lane.lock();
            if !lives || lane.shown.attempts.is_lost(state.pairing.attempt()) {
                self.reset_lane(lane, state, tells && lives);
            }
        }
    }

    /// The same of one lane, whatever becomes of the attempt that the caller has found with its
    /// lock.
    pub(super) fn reset_lane(self, lane: &Lane, mut state: MutexGuard<'_, LaneState>, tells: bool) {
        state.outbox.messages.clear();
        let mut steps = state.pairing.reset(LOST);
        steps.retain(|step| tells || !matches!(step, Step::TellLoss(_)));
        let mut ended = Ended::default();
        self.carry_out(lane, &mut state, steps, &mut ended);
        state.lose_all(lane.queue, &mut ended);
        ended.mark(self.up, lane.peer);
        drop(state);
        // Before the program hears of it, and may ask for more by the stream.
        self.speak(lane);
        ended.tell(self.up, lane.peer);
        if lane.queue == ATOMICS {
            self.up.ranks().wake_own();
        }
        if lane.queue == STREAM && tells && self.table.has_to_carry_messages() {
            // Another connection may wait for the next pair.
            self.stream.connections.note_news();
            self.stream.sets.wakeup.wake();
        }
    }

    /// Begins anew where there were too few pairs, as far as there are now.
    pub(super) fn try_scarce(self) {
        let _uncancelled = cancel::hold_off();
        let scarce = |lane: &&Lane| lane.lock().pairing.is_scarce();
        for lane in self.table.used(None).filter(scarce) {
            if !self.table.device.handles.budget.has_room() {
                return;
            }
            self.begin_anew(lane);
        }
    }

    /// Begins anew where there was no way.
    pub(super) fn begin_anew(self, lane: &Lane) {
        let mut state = lane.lock();
        let steps = state.pairing.try_again();
        if steps.is_empty() {
            return;
        }
        let mut ended = Ended::default();
        self.carry_out(lane, &mut state, steps, &mut ended);
        drop(state);
        self.speak(lane);
        ended.tell(self.up, lane.peer);
    }

    /// Carries out what the machine says; what cannot be ends the attempt.
    pub(super) fn carry_out(
        self,
        lane: &Lane,
        state: &mut LaneState,
        steps: Vec<Step>,
        ended: &mut Ended,
    ) {
        let _uncancelled = cancel::hold_off();
        let mut left: VecDeque<Step> = steps.into();
        while let Some(step) = left.pop_front() {
            let offers = matches!(step, Step::Offer(_));
            match self.step(lane, state, step, ended) {
                Ok(()) => {}
                Err(error) if offers => left = state.pairing.not_made(&error).into(),
                Err(error) => left = state.pairing.refuse(&error.reason).into(),
            }
        }
        self.show(lane, &state.pairing);
        self.lose_refused(lane, state, ended);
        ended.mark(self.up, lane.peer);
    }

    /// What waits for a pair that there will not be is lost, or goes another way.
    fn lose_refused(self, lane: &Lane, state: &mut LaneState, ended: &mut Ended) {
        let Some(reason) = state.pairing.refused() else { return };
        let alone = matches!(lane.queue, ATOMICS | VISIBLE);
        let (forced, lacks) = (self.table.forced && lane.queue != STREAM, state.lacks_pair());
        if forced && !alone && lacks && state.has_waiting() {
            // Whoever looks next has what waits share another pair, or loses it.
            self.table.has_stalled.store(true, Ordering::Release);
            self.stream.sets.wakeup.wake();
        } else if alone || forced {
            state.lose_all(lane.queue, ended);
        } else if lane.queue == STREAM && self.table.has_to_carry_messages() {
            // What has data is an error, which tells why.
            self.abort_waiting(lane);
            log::debug!("messages to {} have no pair: {reason}", lane.peer);
        } else if lacks && self.may_share(lane) {
            log::debug!("{} to {} has no pair: {reason}", lane.queue, lane.peer);
        } else if lacks {
            self.table.warn_of_budget(lane.queue, lane.peer, reason);
        } else {
            self.table.warn_of_streams(lane.queue, lane.peer, reason);
        }
    }

    fn step(
        self,
        lane: &Lane,
        state: &mut LaneState,
        step: Step,
        ended: &mut Ended,
    ) -> Result<(), NotMade> {
        let (queue, peer) = (lane.queue, lane.peer);
        match step {
            Step::Offer(attempt) => {
                let device = &self.table.device;
                let (handles, memory) = (&device.handles, device.flush_memory());
                let pair = QueuePair::new(handles, memory, device.write_end(), kind_of(queue))?;
                let vouches = self.vouches();
                let offer = PairOffer { queue, attempt, vouches, ..pair.offer() };
                self.table.by_number.insert(offer.number, (queue, peer));
                state.pair = Some(pair);
                state.outbox.messages.push_back(Pairing::Offer(offer));
            }
            Step::Connect(offer) => {
                let pair = state.pair.as_mut().ok_or_else(|| "there is no pair".to_owned())?;
                self.note_place(peer, offer.gid);
                pair.connect(&offer)?;
                state
                    .outbox
                    .messages
                    .push_back(Pairing::Connected { queue, attempt: offer.attempt });
            }
            Step::Prove => self.prove(state)?,
            Step::TakeDown { mut reason, was_up } => {
                if let Some(sharers) = state.sharing.in_words(queue).filter(|_| was_up) {
                    reason = format!("{reason}; {sharers}");
                }
                log::debug!("{queue} to {peer}: its pair ends: {reason}");
                if !reason.starts_with(LOST) {
                    self.show_failure();
                }
                self.table.note_trouble(peer, reason);
                // Where two ranks refuse each other's offers one of them tries others next: if both
                // did they could go on like that.
                let in_vain = !was_up && state.pairing.refused().is_some();
                let leaves_it = in_vain && self.up.ranks().me > peer;
                if let Some(pair) = &mut state.pair {
                    self.table.by_number.remove(pair.number());
                    if leaves_it {
                        pair.set_quiet();
                    }
                }
                if queue == STREAM {
                    self.release_connections(lane, state);
                }
                if was_up {
                    state.lose_all(queue, ended);
                } else {
                    state.drop_pair();
                }
            }
            Step::TellEnd { attempt, reason, refuses } => {
                state.outbox.messages.push_back(Pairing::Ended { queue, attempt, refuses, reason });
            }
            Step::TellLoss(attempt) => {
                state.outbox.messages.push_back(Pairing::Lost { queue, attempt });
            }
        }
        Ok(())
    }

    /// Proves the way of a pair. The program may compute meanwhile: the progress thread hears of
    /// the end of that.
    fn prove(self, state: &mut LaneState) -> Result<(), String> {
        state.prove()?;
        self.stream.sets.wakeup.wake();
        Ok(())
    }

    /// Tells the peer what is to be told of a lane: one thread at a time, so that it stays in
    /// order, and without the lane's lock, since a connection may be found to be broken.
    pub(super) fn speak(self, lane: &Lane) {
        let mut state = lane.lock();
        if state.outbox.telling {
            return;
        }
        loop {
            if let Some((connection, back)) = state.outbox.beside.pop_front() {
                state.outbox.telling = true;
                drop(state);
                self.say_back(&connection, &back);
                state = lane.lock();
                state.outbox.telling = false;
                continue;
            }
            let Some(pairing) = state.outbox.messages.pop_front() else { return };
            state.outbox.telling = true;
            drop(state);
            if lane.peer == self.up.ranks().me {
                // The pair with this rank itself is one end, connected with itself.
                self.told(lane.peer, pairing);
                state = lane.lock();
                state.outbox.telling = false;
                continue;
            }
            let awaits_answer = !matches!(pairing, Pairing::Lost { .. });
            let message = Outgoing::new(&Message::Pairing(pairing));
            let beside = lane.queue == STREAM;
            let sent = self.stream.send_pairing(self.up, lane.peer, message, beside);
            if let Err(error) = sent {
                log::debug!("{} to {}: {error}", lane.queue, lane.peer);
                if awaits_answer {
                    self.disconnect(lane.peer);
                }
            }
            state = lane.lock();
            state.outbox.telling = false;
        }
    }
}

/// What a pair of a lane is for.
fn kind_of(queue: QueueId) -> PairKind {
    match queue {
        STREAM => PairKind::Messages,
        VISIBLE => PairKind::Own,
        _ => PairKind::Data,
    }
}

impl LaneState {
    /// What this rank's device has told of the pair, if that is the reason of its end.
    fn failed_by_device(&self) -> Option<String> {
        self.failed.as_ref().filter(|_| self.refuses()).map(|failure| failure.reason.clone())
    }
}

impl Verbs<'_> {
    /// Counts a lane, whose lock the caller holds, as its pair is now.
    pub(super) fn show(self, lane: &Lane, pairing: &PairState) {
        let kind = if self.table.device.carries_messages() { 2 } else { 1 };
        let words = self.up.ranks().area.own_pairs();
        lane.shown.show(pairing, words, lane.queue == STREAM, kind);
    }

    /// Notes where a peer's RoCE port is, and says once if that is another network than this
    /// rank's. Of InfiniBand another subnet is an error of the pair.
    fn note_place(self, peer: Rank, gid: [u8; 16]) {
        let (device, ranks) = (&self.table.device, self.up.ranks());
        let port = &device.handles.port;
        let Some(own) = port.subnet.filter(|own| port.global && !own.contains(gid)) else {
            return;
        };
        let of = |rank: Rank| subnet::in_words(ranks.cards.at(rank).networks());
        let (low, high) = (peer.min(ranks.me), peer.max(ranks.me));
        // The same whichever side says it: the other one may repeat it.
        let place = format!(
            "the port {} of {peer} is not in {own}, the network of {} of {}; a router has to be \
             between (the host of {low} has RoCE ports in {}, that of {high} in {})",
            select::written(gid),
            device.description(),
            ranks.me,
            of(low),
            of(high)
        );
        let mut troubles = self.table.troubles.lock();
        let known = &mut troubles.entry(peer).or_default().elsewhere;
        if known.as_ref() != Some(&place) {
            log::info!("{peer} by RDMA: {place}");
            *known = Some(place);
        }
    }

    /// Counts a pair that has failed.
    fn show_failure(self) {
        self.up.ranks().area.own_pairs().failed.fetch_add(1, Ordering::Relaxed);
    }
}

impl DeviceTable {
    /// Why pairs with `peer` ended last.
    pub(crate) fn last_error(&self, peer: Rank) -> Option<String> {
        self.troubles.lock().get(&peer).map(|trouble| trouble.reason.clone())
    }

    pub(super) fn note_trouble(&self, peer: Rank, reason: String) {
        self.troubles.lock().entry(peer).or_default().reason = reason;
    }

    /// A reason why a peer's device does not answer, with what is known of its place.
    pub(super) fn with_place(&self, peer: Rank, reason: String) -> String {
        let troubles = self.troubles.lock();
        match troubles.get(&peer).and_then(|trouble| trouble.elsewhere.as_ref()) {
            Some(place) => format!("{reason}; {place}"),
            None => reason,
        }
    }

    /// Says once that no device carries what is meant for `peer`.
    pub(super) fn warn_of_streams(&self, queue: QueueId, peer: Rank, reason: &str) {
        if !std::mem::replace(&mut self.troubles.lock().entry(peer).or_default().told, true) {
            let what = if queue == STREAM { "what is meant for" } else { "data to" };
            log::warn!("{what} {peer} goes by TCP, not by the RDMA device: {reason}");
        }
    }
}

impl DeviceTable {
    /// Says once that there are too few pairs.
    fn warn_of_budget(&self, queue: QueueId, peer: Rank, reason: &str) {
        let messages = || "messages".to_owned();
        let what = if queue == STREAM { messages() } else { queue.to_string() };
        if self.device.handles.budget.tells() {
            log::warn!(
                "{what} to {peer}, and further ones for which there is no pair, nor one to share, \
                 go by TCP, not by the RDMA device: {reason}"
            );
        } else {
            log::debug!("{what} to {peer} by TCP: {reason}");
        }
    }
}
