//! Messages between two members: sent into a slot, received, taken; data that is lent, data that is
//! expected.

use super::{Channel, HEAD_BYTES, Head, Lifetime, Member, counts};
use crate::config::CHANNELS;
use crate::control::PeerSlice;
use crate::error::Result;
use crate::ids::NotificationId;
use crate::os::socket::Piece;
use crate::runtime::Inner;
use crate::segment::ARENA;
use crate::sync::{AtomicU64, Ordering, slots};
use crate::transport::endpoint::Departure;
use crate::transport::payload::{ChannelMessage, Payload};
use crate::transport::posted_receives::COMPARED;
use crate::transport::shm::area::wake_kind;
use crate::wire::message::{Put, RemoteAddress, Stream};
use std::sync::Arc;

/// Data from this size on is sent without a copy where it may be: less is copied as quickly as an
/// acknowledgement comes.
pub const ZERO_COPY_BYTES: usize = 96 << 10;

/// For puts that set no word: none is ever set to 0.
pub(super) const NO_WORD: (u32, u32) = (0, 0);

/// Messages.
impl Channel {
    /// Publishes message `index` to a member, counted from 0: its head and the `len` bytes at
    /// `data`, at most [`message_bytes`](super::ChannelSpec::message_bytes), which are not needed
    /// any more then, unless they stay longer. False, and nothing has happened, if there is no room
    /// for it on the way to another node; this rank is woken when there is.
    ///
    /// # Errors
    /// [`RankDied`](crate::Error::RankDied), [`RankLeft`](crate::Error::RankLeft),
    /// [`NotInitialised`](crate::Error::NotInitialised): of members of other nodes.
    /// [`Refused`](crate::Error::Refused) once messages to that member were lost with their
    /// connection.
    ///
    /// # Safety
    /// The data is readable, and stays so as long as it is said to: until it is returned, or
    /// [`withdraw`](Channel::withdraw) has been called.
    #[inline]
    pub unsafe fn send(
        &self,
        to: usize,
        index: u64,
        head: &Head,
        (data, len): (*const u8, usize),
        lifetime: Lifetime,
    ) -> Result<bool> {
        debug_assert!(len as u64 <= self.spec.message_bytes, "{len} bytes do not fit into a slot");
        let member = &self.members[to];
        let (word, value) = (self.layout.received(self.me), counts::word(index + 1));
        let Some(start) = member.start else {
            // SAFETY: as the caller says.
            return unsafe { self.send_far(to, index, (word, value), head, (data, len), lifetime) };
        };
        let slot = start.wrapping_add(self.place_there(member, index) as usize);
        // SAFETY: the slot is in the member's part, has room for both, and is this rank's until the
        // count tells.
        unsafe {
            slot.cast::<Head>().write(*head);
            slot.wrapping_add(HEAD_BYTES).copy_from_nonoverlapping(data, len);
        }
        // Release, in `set`: publishes the message; pairs with the Acquire in `received`.
        slots::set(self.word_of(member, word), value);
        self.inner.ranks.area.wake_for(member.rank, wake_kind::ARRIVAL);
        Ok(true)
    }

    /// The same to a member of another node.
    unsafe fn send_far(
        &self,
        member: usize,
        index: u64,
        word: (u32, u32),
        head: &Head,
        (data, len): (*const u8, usize),
        lifetime: Lifetime,
    ) -> Result<bool> {
        let (number, buffer) = match lifetime {
            Lifetime::UntilAcknowledged { awaited } if len >= ZERO_COPY_BYTES => {
                let channel = (self.own.start, member);
                // SAFETY: as the caller says.
                let begun = unsafe { self.inner.channels.zero_copy.begin(channel, data, awaited) };
                (begun.0, Some(begun.1))
            }
            _ => (0, None),
        };
        let member = &self.members[member];
        // Relaxed: as in `take`.
        let count = member.untold.load(Ordering::Relaxed);
        if 4 * (count - member.told.load(Ordering::Relaxed)) >= u64::from(self.spec.slots) {
            self.tell_taken(member, count, Departure::WithNext);
        }
        let to = self.place_there(member, index);
        let size = (HEAD_BYTES + len) as u64;
        let sent = self.posting(member, (to, size), word, number, |inner, put| {
            let [_, _, waiting] = member.rings;
            let slot = Payload::new(
                Arc::clone(&self.segment),
                self.own.start + waiting + self.layout.slot(index),
            );
            let head = bytemuck::bytes_of(head);
            let by_device = self.device_copy(member, to, (data, len), buffer.is_some());
            let data = Piece { pointer: data.cast_mut(), len };
            let message =
                ChannelMessage { put, head, data, slot, buffer, by_device: by_device.as_ref() };
            // SAFETY: as the caller says; the slot is this rank's until the message has been taken.
            unsafe { inner.endpoint(member.rank).message(member.losses, message) }
        });
        if !matches!(sent, Ok(true)) {
            self.inner.channels.zero_copy.acknowledged(number);
        }
        sent
    }

    /// The receivers of messages that are sent without a copy and have not arrived, one for each,
    /// with whether it is lost. What is lost does not use the data any more, but stays in flight
    /// until [`withdraw`](Channel::withdraw): it shows in [`check`](Channel::check) or
    /// [`alive`](Channel::alive).
    pub fn in_flight(&self) -> Vec<(usize, bool)> {
        self.inner.channels.zero_copy.in_flight(self.own.start)
    }

    /// Messages of a member that have come so far. Messages below that may be read.
    #[inline]
    pub fn received(&self, from: usize) -> u64 {
        let member = &self.members[from];
        self.current(&member.received, self.layout.received(from))
    }

    /// Messages to a member that it has taken, as far as this rank has been told. Their slots may
    /// be used again.
    #[inline]
    pub fn taken(&self, to: usize) -> u64 {
        let member = &self.members[to];
        self.current(&member.taken, self.layout.taken(to))
    }

    /// The count in a word of this rank, of which a former value is known.
    #[inline]
    fn current(&self, known: &AtomicU64, word: u32) -> u64 {
        // Acquire: the word is read after it, and so is never older than what is known.
        let before = known.load(Ordering::Acquire);
        // Acquire: pairs with the Release of whoever counts (`slots::set`, also for what came by
        // TCP): the bytes of the messages are seen after their count, and slots are written after
        // the reads that their receiver has made.
        let now = counts::advance(before, self.own_word(word).load(Ordering::Acquire));
        if now != before {
            // Release: pairs with the Acquire above, in other threads. One that is late may put
            // back an older count, from which the word leads on as well.
            known.store(now, Ordering::Release);
        }
        now
    }

    /// Where message `index` of a member lies in this rank's part.
    #[inline]
    fn place_here(&self, from: usize, index: u64) -> u64 {
        let [here, ..] = self.members[from].rings;
        here + self.layout.slot(index)
    }

    /// Where message `index` to a member lies in its part.
    #[inline]
    fn place_there(&self, member: &Member, index: u64) -> u64 {
        let [_, there, _] = member.rings;
        there + self.layout.slot(index)
    }

    fn slot_of(&self, from: usize, index: u64) -> *mut u8 {
        self.at(self.me, self.place_here(from, index))
    }

    /// What message `index` of a member begins with, which has been received and not been taken.
    #[inline]
    pub fn head(&self, from: usize, index: u64) -> Head {
        // SAFETY: in this rank's part, aligned, and not written before the message has been taken.
        unsafe { self.slot_of(from, index).cast::<Head>().read() }
    }

    /// The data of such a message; of one that was [expected](Channel::post_receive) what had come
    /// before.
    #[inline]
    pub fn incoming(&self, from: usize, index: u64) -> PeerSlice<'_> {
        let pointer = self.slot_of(from, index).wrapping_add(HEAD_BYTES);
        PeerSlice::new(pointer, self.spec.message_bytes as usize)
    }

    /// Whether the data of messages of a member can be expected.
    #[inline]
    pub fn may_post_receive(&self, from: usize) -> bool {
        self.members[from].start.is_none()
    }

    fn arena_slot(&self, from: usize, index: u64) -> u64 {
        self.own.start + self.place_here(from, index)
    }

    /// Has the data of message `index` of a member of another node, of which fewer than the slots
    /// have not been taken before it, go to `to` as far as it has not come yet, if it is `len`
    /// bytes and its head begins like this. To be asked for with
    /// [`complete_receive`](Channel::complete_receive) once it has been received.
    ///
    /// # Safety
    /// The memory is writable, and nobody else uses it, until the message has come or
    /// [`withdraw`](Channel::withdraw) has been called.
    pub unsafe fn post_receive(
        &self,
        from: usize,
        index: u64,
        head: [u64; COMPARED],
        (to, len): (*mut u8, u64),
    ) {
        let slot = self.arena_slot(from, index);
        let all = &self.inner.endpoints.posted_receives;
        // SAFETY: as the caller says.
        unsafe { all.post(self.members[from].rank, slot, head, (to, len)) };
    }

    /// Of a message that has been received: how many bytes of its data lie in its slot, the rest
    /// having gone to where it was expected; `None` for all.
    #[inline]
    pub fn complete_receive(&self, from: usize, index: u64) -> Option<u64> {
        let slot = self.arena_slot(from, index);
        self.inner.endpoints.posted_receives.complete(self.members[from].rank, slot)
    }

    /// Nothing is expected any more, and zero-copy sends are cancelled.
    pub fn withdraw(&self) {
        self.inner.endpoints.posted_receives.cancel(self.own.slots.clone());
        self.inner.channels.zero_copy.cancel(self.own.start);
    }

    /// Messages of a member below `count` are not needed any more. Tells a member of this node at
    /// once, one of another node with a message to it when a quarter of its slots waits for it, and
    /// when half of them do, with whatever is sent there next: at the latest when the next message
    /// of a channel with several slots is taken, or this rank waits.
    #[inline]
    pub fn take(&self, from: usize, count: u64) {
        let member = &self.members[from];
        if member.start.is_some() {
            let word = self.layout.taken(self.me);
            // Release, in `set`: the reads of the messages come before it; pairs with the Acquire
            // in `current`.
            slots::set(self.word_of(member, word), counts::word(count));
            self.inner.ranks.area.wake_for(member.rank, wake_kind::ARRIVAL);
            return;
        }
        self.bundle.meet(member);
        if self.spec.slots > 1 {
            // What was taken before: a sender whose messages come one after the other is told in
            // time. With one slot it waits after each message, as does this rank for the next one.
            self.inner.endpoints.flush(&*self.inner);
        }
        // Relaxed: one thread at a time takes messages of a member, and this orders nothing else.
        member.untold.store(count, Ordering::Relaxed);
        let waiting = count - member.told.load(Ordering::Relaxed);
        if 2 * waiting >= u64::from(self.spec.slots) {
            // Nobody waits for the last message of an operation to be taken, but for the operation.
            self.tell_taken(member, count, Departure::WithAny);
        }
    }

    fn tell_taken(&self, member: &Member, count: u64, departure: Departure) {
        member.told.store(count, Ordering::Relaxed);
        let word = (self.layout.taken(self.me), counts::word(count));
        // Who cannot be told any more shows in `check`.
        let _ = self.put(member, (0, 0, 0), word, departure);
    }

    /// Puts bytes at an offset of this rank's part into the part of a member of another node, then
    /// sets a word there, unless it is [`NO_WORD`]. In order with all that this rank puts to that
    /// one by channels.
    pub(super) fn put(
        &self,
        member: &Member,
        (from, to, size): (u64, u64, u64),
        word: (u32, u32),
        departure: Departure,
    ) -> Result<()> {
        self.posting(member, (to, size), word, 0, |inner, put| {
            let start = self.own.start;
            let payload = (size > 0).then(|| Payload::new(Arc::clone(&self.segment), start + from));
            inner.endpoint(member.rank).put(put, payload, departure).map(|()| true)
        })
        .map(|_| ())
    }

    /// Has `post` send a put of so many bytes to an offset of the part of a member of another node,
    /// with the number of its zero-copy send; false if it has not.
    fn posting(
        &self,
        member: &Member,
        (to, size): (u64, u64),
        (word, value): (u32, u32),
        generation: u32,
        post: impl FnOnce(&Inner, Put) -> Result<bool>,
    ) -> Result<bool> {
        let inner = &*self.inner;
        inner.check_open()?;
        if member.start.is_some() {
            return Ok(true);
        }
        self.bundle.meet(member);
        let remote =
            RemoteAddress { segment: ARENA, generation: member.lease, offset: member.base + to };
        let stream = Stream { queue: CHANNELS, generation };
        let notification = NotificationId(member.words + word);
        post(inner, Put { stream, remote, size, last: true, notification, value })
    }
}
