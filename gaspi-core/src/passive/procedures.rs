//! The procedures of passive messages (GASPI 17.1, 9).

use super::{Letter, Message, SendState};
use crate::callback::may_wait;
use crate::error::{Error, Result};
use crate::ids::{Rank, SegmentId};
use crate::runtime::{Inner, Runtime};
use crate::segment::Segment;
use crate::statistics::Counter;
use crate::sync::slots::{self, passive_end, passive_pending, passive_post, passive_taken};
use crate::sync::{Ordering, epoch};
use crate::timeout::{Deadline, Timeout};
use crate::transport::requests::RequestKey;
use crate::transport::shm::area::liveness;
use crate::wait::{Call, waiting};
use crate::wire;
use crate::wire::message::RemoteCall;
use crate::wire::shared_layout::OUTBOX_BUFFERS;

/// A state taken by this thread; given back when dropped.
struct Taken<'a> {
    inner: &'a Inner,
    receiver: Rank,
    /// What the state becomes.
    then: SendState,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.inner.passive.outbox.lanes.of(self.receiver.index()).lock().state = self.then;
        // Another thread of this rank may wait for the state.
        self.inner.ranks.wake_own();
    }
}

impl Inner {
    fn free_buffer(&self, buffer: usize) {
        self.passive.outbox.free.lock().push(buffer);
        self.ranks.wake_own();
    }

    /// Takes a message back whose call timed out, unless it was received.
    fn withdraw_local(&self, receiver: Rank) {
        let slot = self.ranks.area.passive_slot(receiver, self.ranks.me);
        if let Some(posted) = passive_pending(&slot.word) {
            passive_end(&slot.word, posted, slots::Passive::Empty);
        }
    }

    /// A buffer to send from: where none is free, that of a message whose call timed out, and which
    /// was received since, or will never be.
    fn take_buffer(&self) -> Option<usize> {
        let free = self.passive.outbox.free.lock().pop();
        free.or_else(|| self.ranks.area.locals().iter().find_map(|to| self.reclaim_buffer(*to)))
    }

    fn reclaim_buffer(&self, receiver: Rank) -> Option<usize> {
        let mut sending = self.passive.outbox.lanes.of(receiver.index()).lock();
        let SendState::TimedOut { message, number, buffer } = sending.state else { return None };
        let slot = self.ranks.area.passive_slot(receiver, self.ranks.me);
        let has_ended = self.ranks.liveness(receiver) != liveness::JOINED;
        if passive_taken(&slot.word, number) {
            sending.state = SendState::Received { message };
        } else if has_ended {
            self.withdraw_local(receiver);
            sending.state = SendState::Idle;
        } else {
            return None;
        }
        Some(buffer)
    }

    /// Takes the state to `receiver`, and what a timed-out call left there.
    fn take_lane(&self, receiver: Rank, deadline: Deadline) -> Result<(Taken<'_>, SendState)> {
        let waiting = waiting(Call::PassiveSend, receiver.0);
        let before = self.until(deadline, waiting, || {
            let mut sending = self.passive.outbox.lanes.of(receiver.index()).lock();
            match sending.state {
                SendState::Busy => None,
                before => {
                    sending.state = SendState::Busy;
                    Some(before)
                }
            }
        });
        let timeout = || {
            let pending = format!("another thread's message to {receiver}");
            Error::Timeout { pending }
        };
        let before = before.ok_or_else(timeout)?;
        Ok((Taken { inner: self, receiver, then: SendState::Idle }, before))
    }

    /// Whether neither this rank nor the receiver has ended.
    fn may_send(&self, receiver: Rank) -> Result<()> {
        self.check_open()?;
        self.ranks.check_alive(receiver, "passive_send")
    }

    /// Posts a message; gives its number and buffer.
    fn post_passive(
        &self,
        message: Message,
        receiver: Rank,
        deadline: Deadline,
    ) -> Result<(u64, usize)> {
        let waiting = waiting(Call::PassiveSend, receiver.0);
        let buffer = self.until(deadline, waiting, || {
            let buffer = self.take_buffer().map(Ok);
            buffer.or_else(|| self.may_send(receiver).err().map(Err))
        });
        let Some(buffer) = buffer.transpose()? else {
            let pending = format!("one of {OUTBOX_BUFFERS} passive messages to be received");
            return Err(Error::Timeout { pending });
        };
        let copied = self.copy_out(message, buffer);
        if let Err(error) = copied {
            self.free_buffer(buffer);
            return Err(error);
        }
        let number = {
            let mut sending = self.passive.outbox.lanes.of(receiver.index()).lock();
            sending.number += 1;
            sending.number
        };
        let slot = self.ranks.area.passive_slot(receiver, self.ranks.me);
        slot.size.store(message.size as u32, Ordering::Relaxed);
        slot.buffer.store(buffer as u32, Ordering::Relaxed);
        passive_post(&slot.word, number);
        self.ranks.area.wake(receiver);
        Ok((number, buffer))
    }

    fn copy_out(&self, message: Message, buffer: usize) -> Result<()> {
        self.copy_message(message, self.ranks.area.outbox(self.ranks.me, buffer))
    }

    /// Copies a message to where it travels from, which has room for it.
    fn copy_message(&self, message: Message, to: *mut u8) -> Result<()> {
        let inside = epoch::enter();
        let segment = self.local(message.segment, &inside)?;
        fits(segment, message.offset, message.size)?;
        let from = segment.pointer().wrapping_add(message.offset as usize);
        // SAFETY: the range was checked against the segment, which exists while the guard lives;
        // the place to travel from belongs to this call: a buffer of the outbox, which holds
        // passive_transfer_size_max bytes, or one of the message's size.
        unsafe { std::ptr::copy_nonoverlapping(from, to, message.size as usize) };
        Ok(())
    }

    fn check_passive(&self, segment: SegmentId, offset: u64, size: u64, limit: u64) -> Result<()> {
        let inside = epoch::enter();
        let found = self.local(segment, &inside)?;
        if offset >= found.size {
            return Err(Error::LocalOffset { segment, offset, size: found.size });
        }
        if size == 0 || size > limit || size > found.size - offset {
            let left = found.size - offset;
            let reason = format!(
                "a passive message has 1 to {limit} bytes (passive_transfer_size_max), and {left} \
                 are left at {offset} of {segment}"
            );
            return Err(Error::CommSize { size, reason });
        }
        Ok(())
    }

    fn send(&self, message: Message, receiver: Rank, deadline: Deadline) -> Result<()> {
        self.ranks.check_alive(receiver, "passive_send")?;
        let (mut state, before) = self.take_lane(receiver, deadline)?;
        if !self.ranks.is_local(receiver) {
            return self.send_remotely(message, receiver, deadline, &mut state, before);
        }
        let slot = self.ranks.area.passive_slot(receiver, self.ranks.me);
        let (number, buffer) = match before {
            SendState::TimedOut { message: pending, number, buffer } if pending == message => {
                (number, buffer)
            }
            SendState::Received { message: received } if received == message => return Ok(()),
            SendState::TimedOut { buffer, .. } => {
                self.withdraw_local(receiver);
                self.free_buffer(buffer);
                self.post_passive(message, receiver, deadline)?
            }
            SendState::Idle
            | SendState::Busy
            | SendState::Received { .. }
            | SendState::Calling { .. } => self.post_passive(message, receiver, deadline)?,
        };
        let waiting = waiting(Call::PassiveSend, receiver.0);
        let taken = self.until(deadline, waiting, || {
            if passive_taken(&slot.word, number) {
                return Some(Ok(()));
            }
            // It may have been taken just before the receiver's end.
            let error = self.may_send(receiver).err()?;
            Some(if passive_taken(&slot.word, number) { Ok(()) } else { Err(error) })
        });
        match taken {
            Some(outcome) => {
                self.free_buffer(buffer);
                outcome
            }
            None => {
                state.then = SendState::TimedOut { message, number, buffer };
                Err(Error::Timeout { pending: format!("{receiver} to receive a passive message") })
            }
        }
    }

    /// Sends a message to another node, or continues to wait until it is received.
    fn send_remotely(
        &self,
        message: Message,
        rank: Rank,
        deadline: Deadline,
        state: &mut Taken<'_>,
        before: SendState,
    ) -> Result<()> {
        let Message { segment, offset, size } = message;
        let key = RequestKey::Passive { rank, segment, offset, size };
        if let SendState::Calling { key: pending } = before
            && pending != key
        {
            self.withhold(rank, &pending);
        }
        let mut bytes = vec![0; size as usize];
        self.copy_message(message, bytes.as_mut_ptr())?;
        let waiting = waiting(Call::PassiveSend, rank.0);
        let call = self.call_with_data(key, rank, deadline, RemoteCall::Passive(bytes), waiting)?;
        match self.finish_call(key, rank, call, deadline, waiting) {
            Ok(_) => Ok(()),
            Err(error) if error.is_timeout() => {
                state.then = SendState::Calling { key };
                Err(Error::Timeout { pending: format!("{rank} to receive a passive message") })
            }
            Err(error) => Err(error),
        }
    }

    /// Takes a message to another node back, if it was not received.
    fn withhold(&self, rank: Rank, key: &RequestKey) {
        if let Some(request) = self.endpoints.requests.give_up(key) {
            let withhold = wire::message::Message::Withhold { request };
            // Who cannot be told any more does not receive it either.
            let _ = self.send_message(rank, &withhold, Deadline::Now);
        }
    }

    /// Takes a message to another node back, and waits until it was received or cannot be any more.
    /// Whoever hears of it then, by whichever rank, does not receive it.
    ///
    /// # Errors
    /// [`Error::Timeout`]: the receiver has not answered; the message may be taken back later.
    fn take_back(&self, rank: Rank, key: RequestKey, deadline: Deadline) -> Result<()> {
        let Some(call) = self.endpoints.requests.continued(&key) else { return Ok(()) };
        let withhold = wire::message::Message::Withhold { request: call.request() };
        if call.outcome().is_none() {
            // Who cannot be told any more does not receive it either.
            let _ = self.send_message(rank, &withhold, Deadline::Now);
        }
        let waiting = waiting(Call::PassiveSend, rank.0);
        match self.finish_call(key, rank, call, deadline, waiting) {
            Err(error) if error.is_timeout() => {
                Err(Error::Timeout { pending: format!("{rank} to give a passive message back") })
            }
            // With its connection it is lost.
            _ => Ok(()),
        }
    }

    /// Takes a message of another node that fits.
    fn receive_letter(&self, to: *mut u8, size: u64) -> Option<Rank> {
        let Letter { sender, request, connection, message } = self.passive.mailbox.take(size)?;
        // SAFETY: it fits into the range that the caller has checked, whose segment exists while
        // the caller is inside of an epoch.
        unsafe { to.copy_from_nonoverlapping(message.as_ptr(), message.len()) };
        self.endpoints.answer(connection, request, Ok(0));
        Some(sender)
    }

    /// Copies a waiting message that fits, and takes it.
    fn receive(&self, segment: SegmentId, offset: u64, size: u64) -> Result<Option<Rank>> {
        let inside = epoch::enter();
        let found = self.local(segment, &inside)?;
        fits(found, offset, size)?;
        let to = found.pointer().wrapping_add(offset as usize);
        let first = self.passive.outbox.next.load(Ordering::Relaxed);
        let locals = self.ranks.area.locals();
        if self.endpoints.remote
            && first.is_multiple_of(2)
            && let Some(sender) = self.receive_letter(to, size)
        {
            self.passive.outbox.next.store(first.wrapping_add(1), Ordering::Relaxed);
            return Ok(Some(sender));
        }
        for step in 0..locals.len() {
            let sender = locals[(first as usize + step) % locals.len()];
            let slot = self.ranks.area.passive_slot(self.ranks.me, sender);
            let Some(posted) = passive_pending(&slot.word) else { continue };
            let len = u64::from(slot.size.load(Ordering::Relaxed));
            let buffer = slot.buffer.load(Ordering::Relaxed) as usize;
            // A message taken back meanwhile may have left anything here; taking it then fails.
            if len > size || buffer >= OUTBOX_BUFFERS {
                continue;
            }
            if self.ranks.liveness(sender) != liveness::JOINED {
                continue;
            }
            // SAFETY: `len` fits into the range, which was checked and whose segment exists while
            // the guard lives; an outbox buffer is larger than any message.
            unsafe {
                let from = self.ranks.area.outbox(sender, buffer);
                std::ptr::copy_nonoverlapping(from, to, len as usize);
            }
            if passive_end(&slot.word, posted, slots::Passive::Taken) {
                let next = first.wrapping_add(step as u32 + 1);
                self.passive.outbox.next.store(next, Ordering::Relaxed);
                self.ranks.area.wake(sender);
                return Ok(Some(sender));
            }
        }
        Ok(if self.endpoints.remote { self.receive_letter(to, size) } else { None })
    }
}

/// Checks once more: the segment may have been replaced by a smaller one while the call waited.
fn fits(segment: &Segment, offset: u64, size: u64) -> Result<()> {
    if offset >= segment.size || size > segment.size - offset {
        return Err(Error::LocalOffset { segment: segment.id, offset, size: segment.size });
    }
    Ok(())
}

impl Runtime {
    /// Sends `size` bytes of a segment to whoever receives at `rank` (GASPI 17.1, 9.2.1); returns
    /// once the message was taken. After a timeout, call again to continue.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::CommSize`], [`Error::LocalOffset`], [`Error::InvalidSegment`],
    /// [`Error::InvalidRank`], [`Error::RankDied`], [`Error::RankLeft`].
    pub fn passive_send(
        &self,
        segment: SegmentId,
        offset: u64,
        rank: Rank,
        size: u64,
        timeout: Timeout,
    ) -> Result<()> {
        let inner = self.inner();
        inner.check_open()?;
        let limit = u64::from(inner.config.passive_transfer_size_max);
        inner.check_passive(segment, offset, size, limit)?;
        inner.ranks.check_rank(rank)?;
        may_wait(timeout, Call::PassiveSend.name())?;
        inner.send(Message { segment, offset, size }, rank, timeout.deadline())?;
        inner.count(Counter::PassiveSends, 1);
        Ok(())
    }

    /// Receives a message of up to `size` bytes from any rank, and returns which
    /// (GASPI 17.1, 9.2.2). Larger ones are left for a larger receive.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::CommSize`], [`Error::LocalOffset`], [`Error::InvalidSegment`].
    pub fn passive_receive(
        &self,
        segment: SegmentId,
        offset: u64,
        size: u64,
        timeout: Timeout,
    ) -> Result<Rank> {
        let inner = self.inner();
        inner.check_open()?;
        inner.check_passive(segment, offset, size, u64::MAX)?;
        let waiting = waiting(Call::PassiveReceive, segment.0);
        may_wait(timeout, waiting.call.name())?;
        let received = inner.until(timeout.deadline(), waiting, || {
            inner.check_open().and_then(|()| inner.receive(segment, offset, size)).transpose()
        });
        let timed_out = || Err(Error::Timeout { pending: "a passive message".to_owned() });
        let sender = received.unwrap_or_else(timed_out)?;
        inner.count(Counter::PassiveReceives, 1);
        Ok(sender)
    }

    /// Takes back the messages whose sends timed out (GASPI 17.1, 9.3.1). Nobody receives one that
    /// was not received before this returns.
    ///
    /// # Errors
    /// [`Error::NotInitialised`]. [`Error::Timeout`]: a receiver on another node has not answered;
    /// another purge goes on.
    pub fn passive_queue_purge(&self, timeout: Timeout) -> Result<()> {
        let inner = self.inner();
        inner.check_open()?;
        let (deadline, mut outcome) = (timeout.deadline(), Ok(()));
        for receiver in (0..inner.ranks.size).map(|rank| Rank(rank as u16)) {
            let mut sending = inner.passive.outbox.lanes.of(receiver.index()).lock();
            if let SendState::Calling { key } = sending.state {
                sending.state = SendState::Idle;
                drop(sending);
                let taken_back = inner.take_back(receiver, key, deadline);
                if taken_back.is_err() {
                    let mut sending = inner.passive.outbox.lanes.of(receiver.index()).lock();
                    if matches!(sending.state, SendState::Idle) {
                        sending.state = SendState::Calling { key };
                    } else {
                        drop(sending);
                        inner.withhold(receiver, &key);
                    }
                }
                outcome = outcome.and(taken_back);
                continue;
            }
            if let SendState::Received { .. } = sending.state {
                sending.state = SendState::Idle;
            }
            let SendState::TimedOut { buffer, .. } = sending.state else { continue };
            inner.withdraw_local(receiver);
            sending.state = SendState::Idle;
            drop(sending);
            inner.free_buffer(buffer);
        }
        outcome
    }
}
