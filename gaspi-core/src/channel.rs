//! Channels: memory and signals between the members of a group, for one stream of collectives.
//!
//! Each member has a part of its own arena ([`arena`]) for a channel, laid out alike on all
//! ([`layout`]). Members of a node write into each other's parts; to others the same bytes travel
//! as puts, with a notification in place of the store. A message lands in a slot and is published
//! by a count. Its slot is used again when the receiver has said that it took the message. Arrival
//! slots ([`crate::sync::arrival_slot`]) and staging exist for members of the same node only.
//!
//! Invariants: each word and each arrival slot has one writer, but for counts of arrivals, which
//! are only added to; a count is published after the bytes that it counts and read before them;
//! nothing here waits, except [`Runtime::channel_open`] and `wait_for`.

mod abort_notice;
mod arena;
mod arena_memory;
mod arrivals;
mod bundle;
mod counts;
mod device_memory;
mod fetched;
mod free_list;
mod layout;
mod memory;
mod messages;
mod rings;
mod setup;
mod shown;
mod spec;
mod status;
pub(crate) mod zero_copy;

pub(crate) use crate::transport::posted_receives::HEAD_BYTES;
pub use crate::transport::posted_receives::Head;
pub(crate) use arena::Channels;
pub use arena_memory::ArenaMemory;
pub use bundle::SharedData;
pub use device_memory::DeviceBuffer;
pub use memory::{Location, Mapped, Reached};
pub use messages::ZERO_COPY_BYTES;
pub use spec::{ChannelSpec, DataSpec};
pub(crate) use spec::{describe, describe_many};
pub use status::StatusRead;

use crate::error::{Error, Result};
use crate::ids::{GroupId, Rank};
use crate::runtime::{Inner, Runtime};
use crate::segment::Segment;
use crate::statistics::Counter;
use crate::sync::epoch;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::timeout::Deadline;
use crate::wait::{Call, LongWait, waiting_group};
use crate::wire::message::MemoryKey;
use abort_notice::Notices;
use arena::{FarEnd, View};
use arrivals::ArrivalSlots;
use bundle::Bundle;
use layout::Layout;
use memory::FoundMemory;
use setup::Placement;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A member, and how far this rank is with it. Written by the threads of this rank only.
#[derive(Debug)]
#[repr(align(64))]
struct Member {
    /// Its place among the members.
    index: usize,
    rank: Rank,
    node: u32,
    /// First byte of its part, if that is mapped here.
    start: Option<*mut u8>,
    /// Where its part begins in its arena, where its words do, and under which number it has lent
    /// the range to members of other nodes.
    base: u64,
    words: u32,
    lease: u32,
    /// Where the ring of its messages lies here, from the start of the channel on; where that of
    /// this rank's messages lies there; and where messages to it wait that have not been sent.
    rings: [u64; 3],
    /// By what this rank's device reaches its part.
    device: Option<MemoryKey>,
    /// Its arena, of another member of this node.
    view: Option<Arc<View>>,
    /// Its messages that have come, and messages to it that it has taken, as of the last look.
    received: AtomicU64,
    taken: AtomicU64,
    /// Its messages that this rank has taken: as far as it has been told, and in all.
    told: AtomicU64,
    untold: AtomicU64,
    /// How often requests to it were lost before the channel was opened.
    losses: u64,
}

// SAFETY: the pointer leads into a mapping that the view keeps, or the channel its own; what is
// there is used through atomics and copies.
unsafe impl Send for Member {}
// SAFETY: shared by copies.
unsafe impl Sync for Member {}

impl Member {
    /// The range of its bundle, where this rank, `me` there, says that it has closed its own end,
    /// or that messages are lost; it hears in a word of its own that the member has closed its end.
    fn far_end(&self, layout: &Layout, me: usize, heard_in: u32) -> FarEnd {
        let (closed_in, lost_in) = (self.words + layout.closed(me), self.words + layout.lost(me));
        let Member { lease, base, losses, .. } = *self;
        FarEnd { lease, base, closed_in, lost_in, heard_in, by_device: false, losses }
    }

    /// The same for a channel that begins there in the range of its bundle.
    fn of_part(&self, (bytes_at, words_at): (u64, u32), rings: [u64; 3]) -> Member {
        Member {
            index: self.index,
            rings: rings.map(|at| at - bytes_at),
            rank: self.rank,
            node: self.node,
            start: self.start.map(|start| start.wrapping_add(bytes_at as usize)),
            base: self.base + bytes_at,
            words: self.words + words_at,
            lease: self.lease,
            device: self.device.map(|key| key.behind(bytes_at)),
            view: self.view.clone(),
            received: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            told: AtomicU64::new(0),
            untold: AtomicU64::new(0),
            losses: self.losses,
        }
    }

    fn copies(&self) -> Option<i32> {
        self.view.as_ref().and_then(|view| view.copies)
    }
}

/// How long the data of a message stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lifetime {
    /// For the call that sends it, which copies it.
    Call,
    /// Until it is no longer [in flight](Channel::in_flight): it need not be copied.
    UntilAcknowledged {
        /// Whether this rank is about to wait for that, so that the receiver hurries to say so.
        awaited: bool,
    },
}

/// A channel in this rank's arena.
#[derive(Debug)]
struct OwnPart {
    /// Where it begins.
    start: u64,
    /// Where messages of other nodes come to.
    slots: Range<u64>,
}

/// Failed requests of channels that do not concern a channel.
#[derive(Debug)]
struct KnownFailures {
    /// How many there were when it was opened.
    before: u64,
    /// So many concern no member.
    harmless: AtomicU64,
}

/// Memory and signals between the members of a group, for one stream of collectives.
///
/// Its user keeps to these rules, for all threads of a rank together. Messages to a member are
/// sent, and messages of a member are taken, in the order of their indices. Message `index` is sent
/// only when [`taken`](Channel::taken) has come to `index + 1 - slots`. A rank arrives only when
/// all members have arrived as often as it has.
#[derive(Debug)]
pub struct Channel {
    inner: Arc<Inner>,
    group: GroupId,
    spec: ChannelSpec,
    layout: Layout,
    me: usize,
    ranks: Arc<[Rank]>,
    members: Box<[Member]>,
    arrival_slots: ArrivalSlots,
    segment: Arc<Segment>,
    own: OwnPart,
    bundle: Arc<Bundle>,
    placement: Placement,
    known_failures: KnownFailures,
    found: FoundMemory,
    notices: Notices,
}

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

    /// Whether data may go to a member of another node by this rank's device.
    pub fn reaches_by_device(&self, member: usize) -> bool {
        self.members[member].device.is_some()
    }

    /// Whether members share cores, as far as all of them know.
    pub fn shares_cores(&self) -> bool {
        self.placement.shares_cores
    }

    /// Whether all members are on one machine, of whatever nodes.
    pub fn is_one_machine(&self) -> bool {
        self.placement.is_one_machine
    }

    /// The other members of this node.
    fn neighbours(&self) -> impl Iterator<Item = &Member> {
        let other =
            |(index, member): &(usize, &Member)| *index != self.me && member.start.is_some();
        self.members.iter().enumerate().filter(other).map(|(_, member)| member)
    }

    /// Something in the part of a member of this node. An offset of the layout.
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
    /// [`Error::NotInitialised`] once this rank has left. Members that have left are no error: they
    /// may have done their part.
    #[inline]
    pub fn check(&self) -> Result<()> {
        self.inner.check_open()?;
        // Relaxed: failures beyond the number count again.
        let harmless = self.known_failures.harmless.load(Ordering::Relaxed);
        if self.all_live() && self.inner.channels.failures() == harmless {
            return Ok(());
        }
        self.find_failure()
    }

    /// Whether no member is known to have died: a rank that knows of one does not arrive any more.
    #[inline]
    pub fn all_live(&self) -> bool {
        self.inner.ranks.dead_among(&self.ranks).is_none()
    }

    #[cold]
    fn find_failure(&self) -> Result<()> {
        let inner = &*self.inner;
        if let Some(rank) = inner.ranks.dead_among(&self.ranks) {
            return Err(inner.ranks.died(rank, &self.pending()));
        }
        let failures = inner.channels.failures();
        let members = self.members.iter().map(|member| (member.rank, member.losses));
        if let Some((rank, reason)) = inner.channels.failure(members, self.known_failures.before) {
            return Err(Error::Refused { rank, reason });
        }
        self.known_failures.harmless.store(failures, Ordering::Relaxed);
        Ok(())
    }

    /// The host of a member.
    pub fn host(&self, member: usize) -> &str {
        self.inner.ranks.host_of(self.ranks[member])
    }

    /// Whether a member has closed its end: it sends nothing more.
    pub fn has_closed(&self, member: usize) -> bool {
        self.bundle.has_closed(member)
    }

    /// Whether a member says that messages of it to this rank are lost: none follows that could be
    /// used.
    #[inline]
    pub fn has_lost(&self, member: usize) -> bool {
        !self.is_local(member) && self.bundle.has_lost(member)
    }

    /// Whether a connection with a member broke within this time, and messages of it may be lost of
    /// which this rank does not know. The member may know no more than that they were sent.
    pub fn has_broken_within(&self, member: usize, time: Duration) -> bool {
        self.inner.channels.has_broken_within(self.ranks[member], time)
    }

    /// Whether a connection with a member broke, and it is not known yet whether the member lives.
    pub fn is_in_doubt(&self, member: usize) -> bool {
        let suspected = |rank: &Rank| self.inner.endpoints.stream.is_suspected(*rank);
        self.ranks.get(member).is_some_and(suspected) && self.alive(member).is_ok()
    }

    /// Whether a member is there to do what this rank waits for. As with [`check`](Channel::check),
    /// look again before giving up.
    ///
    /// # Errors
    /// [`Error::RankDied`], [`Error::RankLeft`].
    pub fn alive(&self, member: usize) -> Result<()> {
        self.inner.ranks.check_alive_with(self.ranks[member], || self.pending())
    }

    /// The error of an operation that has failed because of a member.
    pub fn refused(&self, member: usize, reason: impl Into<String>) -> Error {
        Error::Refused { rank: self.ranks[member], reason: reason.into() }
    }

    /// The program is about to be told of an error: the member that it is about is corrupt from now
    /// on. One of an operation that nobody asks for any more is no news of that member, which may
    /// have been connected again.
    #[cold]
    pub fn note_told(&self, error: &Error) {
        if let Error::Refused { rank, .. } = error {
            self.inner.ranks.set_corrupt(*rank);
        }
    }

    /// The error of an operation for which a member reports that another one has died. That is true
    /// for this rank too from now on, unless the other one has left.
    pub fn reported_death(&self, member: usize, reporter: usize) -> Error {
        let (rank, reporter) = (self.ranks[member], self.ranks[reporter]);
        self.inner.ranks.reported_death(rank, reporter, &self.pending())
    }

    /// Wakes the threads of this rank that wait, after one of them has done what others wait for.
    pub fn wake_waiters(&self) {
        self.inner.ranks.wake_own();
    }

    /// Counts what an operation has come to: messages and arrivals, and bytes that it has copied.
    pub fn count_operation(&self, messages: u64, copied: u64) {
        let inside = epoch::enter();
        self.inner.count_inside(&inside, Counter::CollectiveMessages, messages);
        self.inner.count_inside(&inside, Counter::CollectiveCopies, copied);
    }

    /// Looks once, and where it pays a few hundred nanoseconds longer, or some times more, giving
    /// way to others in between; without a look at a clock.
    #[inline]
    pub fn poll_briefly<T>(&self, attempt: impl FnMut() -> Option<T>) -> Option<T> {
        self.inner.waiter.poll_giving_way(attempt)
    }

    /// Whether a rank of this machine has a core of its own, so that its threads may look for what
    /// others send without giving way to them.
    #[inline]
    pub fn has_own_core(&self) -> bool {
        self.inner.waiter.spins()
    }

    /// As [`poll_briefly`](Channel::poll_briefly) where members of other nodes send what is waited
    /// for: looks after that in between. Not inside of an epoch; the closure as for
    /// [`wait_for`](Channel::wait_for).
    pub fn poll_peers_briefly<T>(&self, attempt: impl FnMut() -> Option<T>) -> Option<T> {
        self.inner.poll_peers_briefly(attempt)
    }

    /// As [`Runtime::wait_for`], for the group of this channel. The closure neither waits nor calls
    /// the program: it may run while this rank's sockets wait for it.
    pub fn wait_for<T>(&self, deadline: Deadline, attempt: impl FnMut() -> Option<T>) -> Option<T> {
        self.inner.until(deadline, waiting_group(Call::Channel, self.group), attempt)
    }

    /// The same for a thread of the library beside those of the program: it sleeps as soon as
    /// nothing comes.
    pub fn wait_in_background<T>(
        &self,
        deadline: Deadline,
        attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let waiter = self.inner.waiter.in_background();
        self.inner.until_by(waiter, deadline, waiting_group(Call::Channel, self.group), attempt)
    }

    /// A call that has waited `since` then, waits in parts, and does something else in between.
    pub fn long_wait(&self, since: Instant, deadline: Deadline) -> LongWait {
        self.inner.waiter.long_wait_since(since, deadline)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.withdraw();
    }
}

impl Runtime {
    /// Waits until `attempt` gives something or the deadline has passed, as every call of this
    /// library waits: looks, yields, then sleeps, and looks after the sockets meanwhile. It is
    /// woken by what members do on channels (messages, messages taken, notices, and arrivals, but
    /// among many members by the last one only) and by deaths.
    #[doc(hidden)]
    pub fn wait_for<T>(
        &self,
        group: GroupId,
        deadline: Deadline,
        attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        self.inner().until(deadline, waiting_group(Call::Channel, group), attempt)
    }

    /// As [`Channel::long_wait`], without a channel.
    #[doc(hidden)]
    pub fn long_wait(&self, since: Instant, deadline: Deadline) -> LongWait {
        self.inner().waiter.long_wait_since(since, deadline)
    }

    /// After how long a call without a limit says what it waits for; `None`: never.
    #[doc(hidden)]
    pub fn stall_warning(&self) -> Option<Duration> {
        self.inner().waiter.stall_warning()
    }
}

#[cfg(test)]
mod tests;
