//! Channels: memory and signals between the members of a group, for one stream of collectives.
//!
//! Each member has a part of its own arena ([`arena`]) for a channel, laid out alike on all
//! ([`geometry`]). Members of a node write into each other's parts; to others the same bytes travel as
//! puts, with a notification in place of the store. A message lands in a slot, is published by a count, and
//! its slot is used again when the receiver has said that it took it. Lines ([`crate::sync::line`])
//! and staging exist for members of the same node only.
//!
//! Invariants: each word and each line has one writer; a count is published after the bytes that it
//! counts and read before them; nothing here waits, except [`Runtime::channel_open`] and `wait_for`.

mod arena;
mod counts;
mod expected;
mod geometry;
pub(crate) mod loans;
mod memory;
mod notice;
mod opening;
mod ranges;

pub(crate) use arena::Channels;
pub(crate) use expected::Spot;
pub use memory::{Location, Mapped, Reached};
pub use opening::ChannelSpec;
pub(crate) use opening::describe;

use crate::agreement::PeerSlice;
use crate::error::{Error, Result};
use crate::fabric::frame::{Lane, Place, Put};
use crate::fabric::outgoing::{Item, Message};
use crate::fabric::payload::Payload;
use crate::ids::{GroupId, NotificationId, Rank};
use crate::node::{life, news};
use crate::os::socket::Piece;
use crate::queue::CHANNELS;
use crate::runtime::{Inner, Runtime};
use crate::segment::{ARENA, Segment};
use crate::sync::line::{Line, Look, PAYLOAD_WORDS};
use crate::sync::{AtomicU32, AtomicU64, Ordering, slots};
use crate::timeout::Deadline;
use crate::wait::{Call, Waiting};
use arena::{Reserved, View};
use geometry::Geometry;
use std::sync::{Arc, Mutex};

/// A member, and how far this rank is with it. Written by the threads of this rank only.
#[derive(Debug)]
#[repr(align(64))]
struct Member {
    rank: Rank,
    node: u32,
    /// First byte of its part, if that is mapped here.
    start: Option<*mut u8>,
    /// Where its part begins in its arena, and where its words do.
    base: u64,
    words: u32,
    /// Its arena; none for this rank itself.
    view: Option<Arc<View>>,
    /// Its number among the members of other nodes.
    nth_remote: usize,
    /// Its messages that have come, and messages to it that it has taken, as of the last look.
    received: AtomicU64,
    taken: AtomicU64,
    /// What it has been told of messages of its that were taken, and what there is to tell.
    told: AtomicU64,
    untold: AtomicU64,
    /// How often requests to it were lost before the channel was opened.
    losses: u64,
}

impl Member {
    fn copies(&self) -> Option<i32> {
        self.view.as_ref().and_then(|view| view.copies)
    }
}

/// What a message begins with.
pub type Head = [u64; HEAD_BYTES / size_of::<u64>()];
/// Bytes of that: a cache line.
pub(crate) const HEAD_BYTES: usize = 64;

/// Data from this size on is lent where it may be: less is copied as quickly as an acknowledgement comes.
const LENT_BYTES: usize = 96 << 10;

/// For puts that set no word: none is ever set to 0.
const NO_WORD: (u32, u32) = (0, 0);

/// How long the data of a message stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stays {
    /// For the call that sends it, which copies it.
    ForTheCall,
    /// Until its receiver is no [borrower](Channel::borrowers) any more: it need not be copied.
    UntilReturned {
        /// Whether this rank is about to wait for that, so that the receiver hurries to say so.
        awaited: bool,
    },
}

/// When a put goes out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    Now,
    /// With the one that follows at once.
    Ahead,
}

/// Memory and signals between the members of a group, for one stream of collectives.
///
/// Whoever uses it keeps to these rules, which hold for all threads of a rank together: messages to a
/// member are sent, and messages of a member are taken, in the order of their indices; message `index`
/// is sent only when [`taken`](Channel::taken) has come to `index + 1 - slots`; a rank arrives only
/// when all members have arrived as often as it has.
#[derive(Debug)]
pub struct Channel {
    inner: Arc<Inner>,
    group: GroupId,
    spec: ChannelSpec,
    geometry: Geometry,
    me: usize,
    ranks: Arc<[Rank]>,
    members: Box<[Member]>,
    segment: Arc<Segment>,
    reserved: Reserved,
    all_reachable: bool,
    /// Failures of requests before this channel was opened, and those that are known not to matter.
    troubles: u64,
    harmless: AtomicU64,
    /// The segment in which memory was located last: id and generation.
    recent: AtomicU64,
    /// Notices told so far.
    notices: Mutex<u64>,
}

// SAFETY: the pointers lead into mappings that the channel keeps; what is there is used through
// atomics and copies.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    /// The members, ascending.
    #[inline]
    pub fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// This rank's index among the members.
    #[inline]
    pub fn me(&self) -> usize {
        self.me
    }

    /// The group that opened it.
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// What it was opened with; bytes are rounded up to cache lines.
    #[inline]
    pub fn spec(&self) -> ChannelSpec {
        self.spec
    }

    /// The node of a member, numbered from 0 by first member.
    #[inline]
    pub fn node(&self, member: usize) -> u32 {
        self.members[member].node
    }

    /// Whether a member shares memory with this rank.
    #[inline]
    pub fn is_local(&self, member: usize) -> bool {
        self.members[member].start.is_some()
    }

    /// Whether ranks of this node share cores; the same for all of them.
    pub fn shares_cores(&self) -> bool {
        !self.inner.waiter.spins()
    }

    /// The other members of this node.
    fn neighbours(&self) -> impl Iterator<Item = &Member> {
        let other =
            |(index, member): &(usize, &Member)| *index != self.me && member.start.is_some();
        self.members.iter().enumerate().filter(other).map(|(_, member)| member)
    }

    /// Something in the part of a member of this node. An offset of the geometry.
    #[inline]
    fn at(&self, member: usize, offset: u64) -> *mut u8 {
        let Some(start) = self.members[member].start else { self.not_here(member) };
        start.wrapping_add(offset as usize)
    }

    #[cold]
    fn not_here(&self, member: usize) -> ! {
        panic!("{} does not share memory with this rank", self.members[member].rank)
    }

    /// A word of this rank, by its place among those of the channel.
    #[inline]
    fn own_word(&self, word: u32) -> &AtomicU32 {
        self.segment.notification((self.members[self.me].words + word) as usize)
    }

    /// A word of another member of this node.
    #[inline]
    fn word_of<'a>(&'a self, member: &'a Member, word: u32) -> &'a AtomicU32 {
        match &member.view {
            Some(view) => view.target.notification((member.words + word) as usize),
            None => self.own_word(word),
        }
    }
}

/// Lines and staging, of members of this node.
impl Channel {
    #[inline]
    fn line(&self, member: usize, sequence: u64) -> &Line<AtomicU64> {
        let line = self.at(member, self.geometry.line(sequence)).cast::<Line<AtomicU64>>();
        // SAFETY: inside of the part, aligned to a line, and made of atomics.
        unsafe { &*line }
    }

    /// Publishes this rank's arrival `sequence`, counted from 1, with a fingerprint, up to
    /// [`PAYLOAD_WORDS`] words, and the staging of the same sequence.
    #[inline]
    pub fn arrive(&self, sequence: u64, fingerprint: u64, payload: &[u64]) {
        self.line(self.me, sequence).publish(sequence, fingerprint, payload);
        for member in self.neighbours() {
            self.inner.area.ring_for(member.rank, news::ARRIVAL);
        }
    }

    /// Whether a member has arrived.
    #[inline]
    pub fn look(&self, member: usize, sequence: u64) -> Look {
        self.line(member, sequence).look(sequence)
    }

    /// What a member's arrival carries, once it has been seen and until this rank's next one.
    #[inline]
    pub fn payload(&self, member: usize, sequence: u64) -> [u64; PAYLOAD_WORDS] {
        self.line(member, sequence).payload()
    }

    /// The same where it lies: [`PAYLOAD_WORDS`] words.
    #[inline]
    pub fn carried(&self, member: usize, sequence: u64) -> PeerSlice<'_> {
        let payload = &raw const self.line(member, sequence).payload;
        PeerSlice::new(payload.cast_mut().cast::<u8>(), PAYLOAD_WORDS * size_of::<u64>())
    }

    /// Staging of a member for its arrival `sequence`.
    #[inline]
    pub fn stage(&self, member: usize, sequence: u64) -> PeerSlice<'_> {
        let pointer = self.at(member, self.geometry.stage(member, sequence));
        PeerSlice::new(pointer, self.spec.stage_bytes as usize)
    }
}

/// Messages.
impl Channel {
    /// Publishes message `index` to a member, counted from 0: its head and the `len` bytes at `data`, at most
    /// [`ChannelSpec::message_bytes`], which are not needed any more then, unless they stay longer. False, and
    /// nothing has happened, if there is no room for it on the way to another node; this rank is woken when
    /// there is.
    ///
    /// # Errors
    /// [`Error::RankDied`], [`Error::RankLeft`], [`Error::NotInitialised`]: of members of other nodes.
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
        stays: Stays,
    ) -> Result<bool> {
        debug_assert!(len as u64 <= self.spec.message_bytes, "{len} bytes do not fit into a slot");
        let member = &self.members[to];
        let (word, value) = (self.geometry.received(self.me), counts::word(index + 1));
        let Some(start) = member.start else {
            // SAFETY: as the caller says.
            return unsafe { self.send_far(to, index, (word, value), head, (data, len), stays) };
        };
        let slot = start.wrapping_add(self.geometry.landing(self.me, index) as usize);
        // SAFETY: the slot is in the member's part, has room for both, and is this rank's until the count tells.
        unsafe {
            slot.cast::<Head>().write(*head);
            slot.wrapping_add(HEAD_BYTES).copy_from_nonoverlapping(data, len);
        }
        // Release, in `set`: publishes the message; pairs with the Acquire in `received`.
        slots::set(self.word_of(member, word), value);
        self.inner.area.ring_for(member.rank, news::ARRIVAL);
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
        stays: Stays,
    ) -> Result<bool> {
        let (number, loan) = match stays {
            Stays::UntilReturned { awaited } if len >= LENT_BYTES => {
                let channel = (self.reserved.bytes.start, member);
                // SAFETY: as the caller says.
                let lent = unsafe { self.inner.channels.loans.lend(channel, data, awaited) };
                (lent.0, Some(lent.1))
            }
            _ => (0, None),
        };
        let member = &self.members[member];
        // Relaxed: as in `take`.
        let count = member.untold.load(Ordering::Relaxed);
        if 4 * (count - member.told.load(Ordering::Relaxed)) >= u64::from(self.spec.slots) {
            self.tell_taken(member, count, Turn::Ahead);
        }
        let to = self.geometry.landing(self.me, index);
        let size = (HEAD_BYTES + len) as u64;
        let sent = self.posting(member, (to, size), word, number, |inner, put| {
            let from = self.geometry.outgoing(member.nth_remote, index);
            let slot = Payload::new(Arc::clone(&self.segment), self.reserved.bytes.start + from);
            let head = bytemuck::bytes_of(head);
            let data = Piece { pointer: data.cast_mut(), len };
            let message = Message { put, head, data, slot, loan };
            // SAFETY: as the caller says; the slot is this rank's until the message has been taken.
            unsafe { inner.peers.post_message(inner, member.rank, message) }
        });
        if !matches!(sent, Ok(true)) {
            self.inner.channels.loans.returned(number);
        }
        sent
    }

    /// The receivers of messages that were lent their data and have not arrived, one for each, with whether
    /// it is lost. What is lost does not use the data any more, but is a borrower until
    /// [`withdraw`](Channel::withdraw): it shows in [`check`](Channel::check) or [`alive`](Channel::alive).
    pub fn borrowers(&self) -> Vec<(usize, bool)> {
        self.inner.channels.loans.borrowers(self.reserved.bytes.start)
    }

    /// Messages of a member that have come so far. Messages below that may be read.
    #[inline]
    pub fn received(&self, from: usize) -> u64 {
        let member = &self.members[from];
        self.current(&member.received, self.geometry.received(from))
    }

    /// Messages to a member that it has taken, as far as this rank has been told. Their slots may be
    /// used again.
    #[inline]
    pub fn taken(&self, to: usize) -> u64 {
        let member = &self.members[to];
        self.current(&member.taken, self.geometry.taken(to))
    }

    /// The count in a word of this rank, of which a former value is known.
    #[inline]
    fn current(&self, known: &AtomicU64, word: u32) -> u64 {
        // Acquire: the word is read after it, and so is never older than what is known.
        let before = known.load(Ordering::Acquire);
        // Acquire: pairs with the Release of whoever counts (`slots::set`, also for what came by TCP): the
        // bytes of the messages are seen after their count, and slots are written after the reads that
        // their receiver has made.
        let now = counts::advance(before, self.own_word(word).load(Ordering::Acquire));
        if now != before {
            // Release: pairs with the Acquire above, in other threads. One that is late may put back an
            // older count, from which the word leads on as well.
            known.store(now, Ordering::Release);
        }
        now
    }

    fn slot_of(&self, from: usize, index: u64) -> *mut u8 {
        self.at(self.me, self.geometry.landing(from, index))
    }

    /// What message `index` of a member begins with, which has been received and not been taken.
    #[inline]
    pub fn head(&self, from: usize, index: u64) -> Head {
        // SAFETY: in this rank's part, aligned, and not written before the message has been taken.
        unsafe { self.slot_of(from, index).cast::<Head>().read() }
    }

    /// The data of such a message; of one that was [expected](Channel::expect) what had come before.
    #[inline]
    pub fn incoming(&self, from: usize, index: u64) -> PeerSlice<'_> {
        let pointer = self.slot_of(from, index).wrapping_add(HEAD_BYTES);
        PeerSlice::new(pointer, self.spec.message_bytes as usize)
    }

    /// Whether the data of messages of a member can be expected.
    #[inline]
    pub fn may_expect(&self, from: usize) -> bool {
        self.members[from].start.is_none()
    }

    fn arena_slot(&self, from: usize, index: u64) -> u64 {
        self.reserved.bytes.start + self.geometry.landing(from, index)
    }

    /// Has the data of message `index` of a member of another node, of which fewer than the slots have
    /// not been taken before it, go to `to` as far as it has not come yet, if it is `len` bytes and its
    /// head begins like this. To be asked for with [`landed`](Channel::landed) once it has been received.
    ///
    /// # Safety
    /// The memory is writable, and nobody else uses it, until the message has landed or
    /// [`withdraw`](Channel::withdraw) has been called.
    pub unsafe fn expect(
        &self,
        from: usize,
        index: u64,
        head: [u64; expected::COMPARED],
        (to, len): (*mut u8, u64),
    ) {
        let slot = self.arena_slot(from, index);
        let all = &self.inner.channels.expected;
        // SAFETY: as the caller says.
        unsafe { all.expect(self.members[from].rank, slot, head, (to, len)) };
    }

    /// Of a message that has been received: how many bytes of its data lie in its slot, the rest having gone
    /// to where it was expected; `None` for all.
    #[inline]
    pub fn landed(&self, from: usize, index: u64) -> Option<u64> {
        let slot = self.arena_slot(from, index);
        self.inner.channels.expected.landed(self.members[from].rank, slot)
    }

    /// Nothing is expected any more, and what was lent is called back.
    pub fn withdraw(&self) {
        self.inner.channels.expected.withdraw(self.reserved.bytes.clone());
        self.inner.channels.loans.call_back(self.reserved.bytes.start);
    }

    /// Messages of a member below `count` are not needed any more. Tells a member of this node at once, one of
    /// another node when half of its slots wait for it, or with a message to it when a quarter does.
    #[inline]
    pub fn take(&self, from: usize, count: u64) {
        let member = &self.members[from];
        if member.start.is_some() {
            let word = self.geometry.taken(self.me);
            // Release, in `set`: the reads of the messages come before it; pairs with the Acquire in
            // `current`.
            slots::set(self.word_of(member, word), counts::word(count));
            self.inner.area.ring_for(member.rank, news::ARRIVAL);
            return;
        }
        // Relaxed: one thread at a time takes messages of a member, and this orders nothing else.
        member.untold.store(count, Ordering::Relaxed);
        let waiting = count - member.told.load(Ordering::Relaxed);
        if 2 * waiting >= u64::from(self.spec.slots) {
            self.tell_taken(member, count, Turn::Now);
        }
    }

    fn tell_taken(&self, member: &Member, count: u64, turn: Turn) {
        member.told.store(count, Ordering::Relaxed);
        let word = (self.geometry.taken(self.me), counts::word(count));
        // Who cannot be told any more shows in `check`.
        let _ = self.put(member, (0, 0, 0), word, turn);
    }

    /// Puts bytes at an offset of this rank's part into the part of a member of another node, then sets
    /// a word there, unless it is [`NO_WORD`]. In order with all that this rank puts to that one by channels.
    fn put(
        &self,
        member: &Member,
        (from, to, size): (u64, u64, u64),
        word: (u32, u32),
        turn: Turn,
    ) -> Result<()> {
        self.posting(member, (to, size), word, 0, |inner, put| {
            let start = self.reserved.bytes.start;
            let payload = (size > 0).then(|| Payload::new(Arc::clone(&self.segment), start + from));
            let item = Item::put(put, payload);
            match turn {
                Turn::Now => inner.peers.post(inner, member.rank, CHANNELS, item)?,
                Turn::Ahead => inner.peers.prepend(inner, member.rank, CHANNELS, item)?,
            }
            Ok(true)
        })
        .map(|_| ())
    }

    /// Has `post` send a put of so many bytes to an offset of the part of a member of another node, with
    /// the number of what it was lent; false if it has not.
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
        let Some(view) = &member.view else { return Ok(true) };
        let place =
            Place { segment: ARENA, generation: view.target.generation, offset: member.base + to };
        let lane = Lane { queue: CHANNELS, generation };
        let notification = NotificationId(member.words + word);
        post(inner, Put { lane, place, size, last: true, notification, value })
    }
}

/// How the members are.
impl Channel {
    /// What cannot complete, in words.
    fn pending(&self) -> String {
        format!("a collective of {}", self.group)
    }

    /// Whether the members can go on. What they sent before may have come nevertheless: look again
    /// before giving up. No system call.
    ///
    /// # Errors
    /// [`Error::RankDied`] of a member, [`Error::Refused`] if a request to one has failed,
    /// [`Error::NotInitialised`] once this rank has left. Members that have left are no error: they may
    /// have done their part.
    #[inline]
    pub fn check(&self) -> Result<()> {
        let area = &self.inner.area;
        self.inner.check_open()?;
        let lives = |rank: &Rank| area.life(*rank) != life::DEAD;
        // Relaxed: what is newer than the number counts again.
        let harmless = self.harmless.load(Ordering::Relaxed);
        if self.ranks.iter().all(lives) && self.inner.channels.troubles() == harmless {
            return Ok(());
        }
        self.find_trouble()
    }

    #[cold]
    fn find_trouble(&self) -> Result<()> {
        let inner = &*self.inner;
        if let Some(rank) = inner.dead_among(&self.ranks) {
            return Err(inner.died(rank, &self.pending()));
        }
        let troubles = inner.channels.troubles();
        if let Some((rank, reason)) = inner.channels.trouble(&self.ranks, self.troubles) {
            return Err(Error::Refused { rank, reason });
        }
        self.harmless.store(troubles, Ordering::Relaxed);
        Ok(())
    }

    /// Whether a member has closed its end: it sends nothing more.
    pub fn has_closed(&self, member: usize) -> bool {
        member != self.me
            // Acquire: what it sent before is seen.
            && self.own_word(self.geometry.taken(member)).load(Ordering::Acquire) == counts::CLOSED
    }

    /// Whether a member is there to do what this rank waits for. As with [`check`](Channel::check), look
    /// again before giving up.
    ///
    /// # Errors
    /// [`Error::RankDied`], [`Error::RankLeft`].
    pub fn alive(&self, member: usize) -> Result<()> {
        self.inner.check_alive_with(self.ranks[member], || self.pending())
    }

    /// Wakes the threads of this rank that wait, after one of them has done what others wait for.
    pub fn rouse(&self) {
        self.inner.area.ring(self.inner.rank);
    }

    /// Where ranks share cores, lets one run that others may wait for.
    pub fn give_way(&self) {
        self.inner.waiter.give_way();
    }

    /// Looks once, and where it pays a few hundred nanoseconds longer, without a look at a clock.
    #[inline]
    pub fn briefly<T>(&self, attempt: impl FnMut() -> Option<T>) -> Option<T> {
        self.inner.waiter.briefly(attempt)
    }

    /// As [`Runtime::wait_for`], for the group of this channel.
    pub fn wait_for<T>(&self, deadline: Deadline, attempt: impl FnMut() -> Option<T>) -> Option<T> {
        self.inner.wait_for(self.group, deadline, attempt)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let inner = &*self.inner;
        self.withdraw();
        // A forked child has no right to close for its parent; nor does one write to others that has
        // ended for them.
        if inner.process != std::process::id() || inner.area.life(inner.rank) == life::DEAD {
            return;
        }
        let word = self.geometry.taken(self.me);
        let mut writers = Vec::with_capacity(self.members.len());
        for (index, member) in
            self.members.iter().enumerate().filter(|(index, _)| *index != self.me)
        {
            if member.start.is_some() {
                // Release, in `set`: all that this rank wrote there comes before it.
                slots::set(self.word_of(member, word), counts::CLOSED);
                self.inner.area.ring_for(member.rank, news::ARRIVAL);
            } else if inner.channels.losses(member.rank) == member.losses {
                // Else what was sent by a connection that broke might come after this. Who cannot be
                // told has ended, and so will this rank have for it.
                let _ = self.put(member, (0, 0, 0), (word, counts::CLOSED), Turn::Now);
            }
            let own = self.members[self.me].words + self.geometry.taken(index);
            writers.push((member.rank, own));
        }
        if let Some(arena) = inner.channels.arena() {
            arena.close(self.reserved.clone(), writers);
        }
    }
}

impl Inner {
    fn wait_for<T>(
        &self,
        group: GroupId,
        deadline: Deadline,
        attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        self.until(deadline, Waiting { call: Call::Channel, object: group.0.into() }, attempt)
    }
}

impl Runtime {
    /// Waits until `attempt` gives something or the deadline has passed, as every call of this library
    /// waits: looks, yields, then sleeps, and looks after the sockets meanwhile. It is woken by what
    /// members do on channels (messages, messages taken, arrivals, notices) and by deaths.
    pub fn wait_for<T>(
        &self,
        group: GroupId,
        deadline: Deadline,
        attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        self.inner().wait_for(group, deadline, attempt)
    }
}

#[cfg(test)]
mod tests;
