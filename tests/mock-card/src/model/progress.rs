//! Progress: launching what is queued, completing in order, time limits, polls.

use super::codes::{completed, event, flag, opcode, state, status};
use super::completion::{Added, Completion};
use super::network::{Call, Network, Signal};
use super::pair::{Outcome, Payload, Request, rnr_ns};
use super::transfer::Launch;

/// Beside the status of a planned failure: the request is carried out, and its answer is lost. Only
/// between cards of one process.
const ANSWER_LOST: u32 = 1 << 16;
/// Held bytes and requests of a fabric that a step looks at before it gives up.
const TRIES: usize = 4;

impl Network {
    /// Notes that something may be to do for a pair.
    pub(crate) fn wake(&mut self, number: u32) {
        let Some(pair) = self.pairs.find_mut(number) else { return };
        if !pair.active && pair.has_work() {
            pair.active = true;
            self.active.push(number);
        }
        if self.options.behaviour.shuffle == 0
            && self.pairs.find(number).is_some_and(|pair| pair.state == state::ERR)
        {
            self.drive(number);
        }
    }

    /// A receive has come, or a link: who waits for one goes on, unless requests go on by steps.
    pub(crate) fn retry_others(&mut self) {
        if self.options.behaviour.shuffle != 0 {
            return;
        }
        for number in self.active.clone() {
            self.drive(number);
        }
        self.rest();
    }

    /// Does all that can be done for a pair now.
    pub(crate) fn drive(&mut self, number: u32) {
        while self.complete_head(number) || self.launch_next(number) {}
    }

    /// Forgets pairs that nothing is to be done for.
    fn rest(&mut self) {
        let pairs = &mut self.pairs;
        self.active.retain(|number| {
            let Some(pair) = pairs.find_mut(*number) else { return false };
            pair.active = pair.has_work();
            pair.active
        });
    }

    /// Does one thing, chosen at random where there is a choice. False if nothing can be done
    /// before time passes or a program does something.
    pub(crate) fn step(&mut self) -> bool {
        if self.options.behaviour.placement == 1 && self.random.once_in(2) && self.place_some() {
            return true;
        }
        let count = self.active.len();
        let start = self.random.below(count);
        for at in 0..count {
            let number = self.active[(start + at) % count];
            let mut acts = [Network::launch_next, Network::complete_head];
            if self.random.once_in(2) {
                acts.reverse();
            }
            let done = acts.iter().any(|act| act(self, number));
            if done {
                self.rest();
                return true;
            }
        }
        self.rest();
        self.options.behaviour.placement == 1 && self.place_some()
    }

    fn place_some(&mut self) -> bool {
        let count = self.cards.len();
        let start = self.random.below(count);
        (0..count).any(|at| {
            let card = &mut self.cards[(start + at) % count];
            card.place_some(&mut self.random)
        })
    }

    /// Whether steps can do anything, now or later.
    pub(crate) fn has_work(&self) -> bool {
        let placing = self.options.behaviour.placement == 1;
        !self.active.is_empty() || (placing && self.cards.iter().any(|card| card.holds()))
    }

    /// Launches the next request of a pair, if it may go.
    pub(crate) fn launch_next(&mut self, number: u32) -> bool {
        let now = self.now_ns;
        let Some(pair) = self.pairs.find_mut(number) else { return false };
        let at = pair.sending.launched;
        let reads = pair.reads_under_way();
        let card = &self.cards[pair.parts.card as usize];
        let stands = card.is_lost() || card.faults.held;
        let sending = &mut pair.sending;
        let waits = pair.state != state::RTS || sending.halted || now < sending.resend_at;
        let Some(entry) = sending.entries.get_mut(at) else { return false };
        let fenced = entry.request.flags & flag::FENCE != 0 && reads > 0;
        let deep = entry.request.is_read() && reads >= usize::from(pair.attributes.reads);
        if waits || stands || fenced || deep {
            return false;
        }
        let planned = entry.outcome;
        if planned.is_some_and(|outcome| outcome.status & ANSWER_LOST == 0) {
            (sending.launched, sending.halted) = (at + 1, true);
            return true;
        }
        let request = entry.request;
        let payload = std::mem::take(&mut entry.payload);
        let mut launch = self.launch(number, &request, payload.source());
        if let (Launch::Finished(outcome), Some(planned)) = (&mut launch, planned) {
            outcome.status = planned.status & !ANSWER_LOST;
        }
        self.note_launch(number, at, launch, payload)
    }

    fn note_launch(&mut self, number: u32, at: usize, launch: Launch, payload: Payload) -> bool {
        let Some(pair) = self.pairs.find_mut(number) else { return false };
        let sending = &mut pair.sending;
        let Some(entry) = sending.entries.get_mut(at) else { return false };
        match launch {
            Launch::Finished(outcome) => {
                entry.outcome = Some(outcome);
                sending.launched = at + 1;
                sending.halted = outcome.status != status::SUCCESS;
                (sending.retry_at, sending.rnr_at) = (None, None);
                true
            }
            Launch::Sent => {
                entry.payload = payload;
                sending.launched = at + 1;
                self.need_answer(number);
                true
            }
            Launch::Unanswered => {
                entry.payload = payload;
                self.need_answer(number);
                self.give_up(number)
            }
            Launch::NotReady(timer) => {
                entry.payload = payload;
                self.need_receive(number, timer);
                self.give_up(number)
            }
        }
    }

    /// The time by which an answer must have come starts now, if it does not run.
    pub(crate) fn need_answer(&mut self, number: u32) {
        let forever = self.options.behaviour.retry_seven_forever != 0;
        let now = self.now_ns;
        let Some(pair) = self.pairs.find_mut(number) else { return };
        if pair.sending.retry_at.is_none() {
            pair.sending.retry_at = pair.attributes.retry_ns(forever).map(|ns| now + ns);
        }
    }

    pub(crate) fn need_receive(&mut self, number: u32, timer: u8) {
        let now = self.now_ns;
        let kind = self.options.behaviour.shuffle == 0 && self.outbox.is_none();
        let Some(pair) = self.pairs.find_mut(number) else { return };
        pair.sending.retry_at = None;
        if pair.sending.rnr_at.is_none() {
            pair.sending.rnr_at = pair.attributes.rnr_limit_ns(timer).map(|ns| now + ns);
        }
        if !kind {
            pair.sending.resend_at = now + rnr_ns(timer);
        }
    }

    /// Fails the oldest request that was not answered, if its time is over. What came before it
    /// completes first.
    fn give_up(&mut self, number: u32) -> bool {
        let now = self.now_ns;
        let Some(pair) = self.pairs.find_mut(number) else { return false };
        let sending = &mut pair.sending;
        let over = |at: Option<u64>| at.is_some_and(|at| at <= now);
        let status = match (over(sending.rnr_at), over(sending.retry_at)) {
            (true, _) => status::RNR_EXCEEDED,
            (_, true) => status::RETRY_EXCEEDED,
            _ => return false,
        };
        let oldest = sending.entries.iter().position(|entry| entry.outcome.is_none());
        let Some(oldest) = oldest else { return false };
        sending.entries[oldest].outcome = Some(Outcome { status, ..Outcome::default() });
        (sending.launched, sending.halted) = (oldest + 1, true);
        (sending.retry_at, sending.rnr_at) = (None, None);
        true
    }

    /// Completes the oldest request of a pair, or flushes one if the pair is in error.
    pub(crate) fn complete_head(&mut self, number: u32) -> bool {
        let Some(pair) = self.pairs.find(number) else { return false };
        let card = pair.parts.card;
        if self.cards[card as usize].is_lost() {
            return false;
        }
        if pair.state == state::ERR {
            return self.flush_one(number);
        }
        let Some(entry) = pair.sending.entries.front() else { return false };
        let launched = pair.sending.launched > 0;
        let reachable = self.passes(number);
        let Some(outcome) = entry.outcome.filter(|_| launched) else {
            return launched && self.give_up(number);
        };
        let remote = outcome.status == status::SUCCESS
            || matches!(outcome.status, status::REMOTE_INVALID..=status::REMOTE_OPERATION);
        if remote && !reachable {
            self.need_answer(number);
            return self.answer_is_late(number);
        }
        self.report(number, outcome);
        true
    }

    /// A request was carried out, but its answer does not come back.
    fn answer_is_late(&mut self, number: u32) -> bool {
        let now = self.now_ns;
        let Some(pair) = self.pairs.find_mut(number) else { return false };
        if pair.sending.retry_at.is_none_or(|at| at > now) {
            return false;
        }
        pair.sending.halted = true;
        let outcome = Outcome { status: status::RETRY_EXCEEDED, ..Outcome::default() };
        self.report(number, outcome);
        true
    }

    fn flush_one(&mut self, number: u32) -> bool {
        let Some(pair) = self.pairs.find_mut(number) else { return false };
        let queue = pair.parts.receive_queue;
        if !pair.sending.entries.is_empty() {
            self.report(number, Outcome { status: status::FLUSHED, ..Outcome::default() });
            return true;
        }
        let Some(receive) = pair.receives.pop_front() else { return false };
        let (id, status) = (receive.id, status::FLUSHED);
        let opcode = completed::RECEIVE;
        let completion = Completion { id, status, opcode, pair: number, ..Completion::default() };
        self.complete(queue, completion);
        true
    }

    /// Takes the oldest request out of the send queue and tells how it ended, if that is asked for.
    fn report(&mut self, number: u32, outcome: Outcome) {
        let Some(pair) = self.pairs.find_mut(number) else { return };
        let (parts, peer) = (pair.parts, pair.attributes.peer);
        let sending = &mut pair.sending;
        let Some(entry) = sending.entries.pop_front() else { return };
        sending.launched = sending.launched.saturating_sub(1);
        let failed = outcome.status != status::SUCCESS;
        if !failed {
            sending.retry_at = None;
            sending.marks.0 = sending.marks.0.max(outcome.own_mark);
            sending.marks.1 = outcome.peer_mark.or(sending.marks.1);
        }
        sending.silent += 1;
        let request = entry.request;
        if failed || parts.all_signaled || request.flags & flag::SIGNALED != 0 {
            let slots = std::mem::take(&mut sending.silent);
            let (own_mark, peer_mark) = std::mem::take(&mut sending.marks);
            let completion = Completion {
                id: request.id,
                status: outcome.status,
                opcode: completed_opcode(&request),
                length: request.length as u32,
                pair: number,
                peer,
                slots,
                own_mark,
                peer_mark,
                ..Completion::default()
            };
            self.complete(parts.send_queue, completion);
        }
        if failed && outcome.status != status::FLUSHED {
            self.set_error(number);
        }
    }

    /// A pair in error answers nobody and flushes what it has. Its program hears that by
    /// completions only.
    pub(crate) fn set_error(&mut self, number: u32) {
        let tells = self.options.behaviour.last_wqe_event != 0;
        let Some(pair) = self.pairs.find_mut(number) else { return };
        pair.state = state::ERR;
        let (card, kind) = (pair.parts.card, event::QP_LAST_WQE_REACHED);
        if tells && pair.parts.shared.is_some() {
            self.signal(Signal::Event { card, kind, subject: number });
        }
        self.wake(number);
    }

    /// The responding end of a refused request.
    pub(crate) fn fail_target(&mut self, number: u32) {
        self.set_error(number);
    }

    /// Adds an entry to a completion queue.
    pub(crate) fn complete(&mut self, number: u32, mut completion: Completion) {
        let unkind = self.options.behaviour.shuffle != 0;
        let Some(queue) = self.queues.find_mut(number) else { return };
        if completion.status != status::SUCCESS && unkind {
            // Only id, status and pair of a failed request mean anything.
            completion.opcode = completed::RECEIVE_WRITE_IMM + 1000;
            completion.length = u32::MAX;
        }
        let card = queue.card;
        let added = queue.add(completion);
        let counters = &mut self.card(card).counters;
        counters.completions += 1;
        counters.errors += u64::from(completion.status != status::SUCCESS);
        match added {
            Added::Quietly => {}
            Added::WithEvent => self.signal(Signal::Completion { card, queue: number }),
            Added::Overrun => {
                let kind = event::CQ_ERR;
                self.signal(Signal::Event { card, kind, subject: number });
            }
        }
    }

    /// Takes a completion, frees the slots that it stands for, and makes visible what it promises.
    pub(crate) fn poll(&mut self, number: u32) -> Call<Option<Completion>> {
        let queue = self.queues.find_mut(number).ok_or(libc::EINVAL)?;
        let card = queue.card as usize;
        if self.cards[card].faults.stopped || self.cards[card].is_lost() {
            return Ok(None);
        }
        let Some(taken) = queue.take() else {
            return if queue.overrun { Err(libc::EIO) } else { Ok(None) };
        };
        if taken.slots > 0
            && let Some(pair) = self.pairs.find_mut(taken.pair)
        {
            pair.sending.used -= taken.slots;
        }
        if self.options.behaviour.placement != 0 {
            self.make_visible(card, &taken);
        }
        Ok(Some(taken))
    }

    /// By card, or by pair: see `Behaviour::by_pair`.
    fn make_visible(&mut self, card: usize, taken: &Completion) {
        let by_pair = self.options.behaviour.by_pair != 0;
        if taken.own_mark > 0 {
            self.cards[card].flush(taken.own_mark, by_pair.then_some(taken.pair));
        }
        if let Some(peer) = taken.peer_mark {
            let pair = by_pair.then_some(peer.pair);
            if let Some(card) = self.cards.get_mut(peer.card as usize) {
                card.flush(peer.mark, pair);
            }
        }
    }

    /// Asks for an event with the next completion of a queue.
    pub(crate) fn arm(&mut self, number: u32, solicited_only: bool) -> Call<()> {
        let queue = self.queues.find_mut(number).ok_or(libc::EINVAL)?;
        queue.arm(solicited_only);
        Ok(())
    }

    /// When a time limit ends next.
    pub(crate) fn next_timer(&self) -> Option<u64> {
        let times = self.active.iter().filter_map(|number| {
            let sending = &self.pairs.find(*number)?.sending;
            let resend = (sending.resend_at > self.now_ns).then_some(sending.resend_at);
            [sending.retry_at, sending.rnr_at, resend].into_iter().flatten().min()
        });
        times.min()
    }

    /// Time has come to `now_ns`. What that ends is ended by steps.
    pub(crate) fn set_now(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Steps until nothing is to be done before time passes.
    pub(crate) fn settle(&mut self) {
        while self.step() {}
    }

    /// A few steps, for programs that poll.
    pub(crate) fn some_steps(&mut self) {
        for _ in 0..1 + self.random.below(TRIES) {
            if !self.step() {
                break;
            }
        }
    }
}

fn completed_opcode(request: &Request) -> u32 {
    match request.opcode {
        opcode::SEND | opcode::SEND_IMM => completed::SEND,
        opcode::WRITE | opcode::WRITE_IMM => completed::WRITE,
        opcode::READ => completed::READ,
        opcode::COMPARE_SWAP => completed::COMPARE_SWAP,
        _ => completed::FETCH_ADD,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::model::codes::access;
    use crate::model::memory::Piece;
    use crate::model::pair::{Attributes, Capacity, Parts, Sge, mask};
    use crate::options::Options;

    /// Two cards with a pair each, whose requests wait for steps; the queue and pair of the first.
    fn two(memory: Piece) -> (Network, u32, u32, [u32; 2]) {
        let mut options = Options::unkind(1);
        options.behaviour.placement = 0;
        let mut net = Network::new(0, options);
        net.need_card(1);
        let capacity = Capacity { sends: 4, send_pieces: 1, ..Capacity::default() };
        let all = access::LOCAL_WRITE | access::REMOTE_WRITE;
        let mut made = [0, 1].map(|card| {
            let domain = net.create_domain(card).unwrap();
            let queue = net.create_queue(card, 8, Arc::new(AtomicU32::new(0))).unwrap();
            let keys = net.register(card, domain, memory, memory.address, all).unwrap();
            let (send_queue, receive_queue) = (queue, queue);
            let (shared, all_signaled) = (None, true);
            let parts = Parts { card, domain, send_queue, receive_queue, shared, all_signaled };
            (queue, net.create_pair(parts, capacity).unwrap(), keys)
        });
        for (card, (peer_card, peer)) in [(1, made[1].1), (0, made[0].1)].into_iter().enumerate() {
            let gid = net.card(peer_card).gids.iter().flatten().last().unwrap().0;
            let mut all = Attributes { access: all, mtu: 3, peer, ..Attributes::default() };
            (all.port, all.timeout, all.retry_count) = (1, 1, 0);
            (all.address.is_global, all.address.target) = (true, gid);
            let first = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS;
            let second = mask::ADDRESS | mask::PATH_MTU | mask::PEER | mask::RECEIVE_PSN;
            let second = second | mask::ACCEPTED_READS | mask::RNR_TIMER | mask::STATE;
            let third = mask::TIMEOUT | mask::RETRY_COUNT | mask::RNR_RETRY | mask::SEND_PSN;
            let third = third | mask::READS | mask::STATE;
            for (into, given) in [(1, first), (2, second), (3, third)] {
                net.modify(made[card].1, into, &all, given).unwrap();
            }
        }
        let (queue, pair, (_, local, _)) = made[0];
        let remote = std::mem::take(&mut made[1].2).2;
        (net, queue, pair, [local, remote])
    }

    #[test]
    fn a_request_may_have_been_carried_out_though_its_answer_is_lost() {
        let mut words = Box::new([7_u64, 0]);
        let memory = Piece { address: words.as_mut_ptr() as u64, length: 16 };
        let (mut net, queue, pair, [key, remote_key]) = two(memory);
        let sge = Sge { address: memory.address, length: 8, key };
        let request = Request { key: remote_key, remote: memory.address + 8, ..Request::default() };
        net.post_send(pair, request, &[sge]).unwrap();
        assert!(net.launch_next(pair));
        net.cuts.insert((0, 1));
        net.settle();
        assert!(net.poll(queue).unwrap().is_none());
        net.set_now(1 << 40);
        net.settle();
        let found = net.poll(queue).unwrap().unwrap();
        assert_eq!(found.status, status::RETRY_EXCEEDED);
        // SAFETY: kept alive.
        assert_eq!(unsafe { (&raw const words[1]).read_volatile() }, 7);
    }
}
