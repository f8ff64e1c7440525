//! The memory that channels lie in: one hidden sparse segment per rank, of which each channel takes
//! a range and some notification words.
//!
//! Each range is lent to the members of other nodes under a number, its lease, which ends for data
//! when this rank closes its end: what comes by connections later goes nowhere (see
//! [`crate::segment::leases`]) and is answered by
//! [`Message::Closed`](crate::wire::message::Message::Closed).
//! Where a connection breaks, a rank that waits for the other end says again that its own is
//! closed, which is answered by one that is closed too.
//!
//! Invariant: a range is used again only when nobody writes there any more, or waits for what lies
//! there. Members of its node, and those with whom this rank has exchanged something, have closed
//! their end, behind all that they wrote; or they have ended and all that they sent has come. A
//! device writes there for those of them only. Nor does this rank's device read there: whatever it
//! was asked to write from there has ended.

mod procedures;
mod published;

use super::counts::{CLOSED, LOST};
use super::free_list::FreeList;
use super::layout::PAGE;
use super::shown::ShownMemory;
use super::zero_copy::ZeroCopySends;
use crate::config::CHANNELS;
use crate::error::{Error, Result};
use crate::ids::{GroupId, NotificationId, Rank};
use crate::segment::prepared::Prepared;
use crate::segment::{ARENA, Segment, Target};
use crate::sync::by_rank::ByRank;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, slots};
use crate::wire::message::{MemoryKey, Put, RemoteAddress, Stream};
use crate::wire::shared_layout::ARENA_WORDS;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Bytes of address space that are enough for an arena where that is limited.
const ARENA_BYTES_MIN: u64 = 64 << 20;
/// Freed ranges from this size on give their memory back.
const RELEASE_BYTES: u64 = 1 << 20;

/// A range of this rank's arena.
#[derive(Debug, Clone)]
pub(super) struct Reserved {
    pub(super) bytes: Range<u64>,
    pub(super) words: Range<u64>,
    /// Under which number it is lent.
    pub(super) lease: u32,
    /// What the device has made of a part of it. Each request that uses it shares this until it has
    /// ended.
    pub(super) device: Option<Arc<Prepared>>,
    /// Which part.
    pub(super) device_bytes: Range<u64>,
}

impl Reserved {
    /// By what peers name places in the range as if the device knew all of it.
    pub(super) fn key(&self) -> Option<MemoryKey> {
        let key = self.device.as_ref()?.key;
        let before = self.device_bytes.start - self.bytes.start;
        Some(MemoryKey { address: key.address - before, ..key })
    }

    /// Whether a request of the device uses it, if nobody else shares it.
    fn is_in_use(&self) -> bool {
        self.device.as_ref().is_some_and(|device| Arc::strong_count(device) > 1)
    }
}

/// A range that is not used by this rank any more, but perhaps by others.
#[derive(Debug)]
struct Closing {
    reserved: Reserved,
    /// The others, each with the word in which it says that it has closed its end.
    writers: Vec<(Rank, u32)>,
}

#[derive(Debug)]
struct Space {
    bytes: FreeList,
    words: FreeList,
    closing: Vec<Closing>,
    /// The last lease.
    lease: u32,
}

/// This rank's arena.
#[derive(Debug)]
pub(crate) struct Arena {
    pub(crate) segment: Arc<Segment>,
    space: Mutex<Space>,
    /// The ends of members of other nodes, by rank and lease there.
    far_ends: Mutex<HashMap<(Rank, u32), FarEnd>>,
}

/// The end of a channel that a member of another node has.
#[derive(Debug, Clone, Copy)]
pub(super) struct FarEnd {
    /// Under which number its range is lent, and where that begins.
    pub(super) lease: u32,
    pub(super) base: u64,
    /// The words there in which this rank says that it has closed its own end, and that messages of
    /// it are lost.
    pub(super) closed_in: u32,
    pub(super) lost_in: u32,
    /// The word here in which the member says that it has closed its own.
    pub(super) heard_in: u32,
    /// A device of this rank may have written there.
    pub(super) by_device: bool,
    /// Requests to the member that were lost before the channel was opened, or of which the member
    /// has been told.
    pub(super) losses: u64,
}

impl FarEnd {
    /// Says that this rank has closed its own end.
    pub(super) fn closed(&self) -> Put {
        self.tells(self.closed_in, CLOSED)
    }

    /// Says that messages of this rank are lost.
    pub(super) fn lost(&self) -> Put {
        self.tells(self.lost_in, LOST)
    }

    fn tells(&self, word: u32, value: u32) -> Put {
        let remote = RemoteAddress { segment: ARENA, generation: self.lease, offset: self.base };
        let stream = Stream { queue: CHANNELS, generation: 0 };
        let notification = NotificationId(word);
        Put { stream, remote, size: 0, last: true, notification, value }
    }
}

/// The arena of another rank of this node.
#[derive(Debug)]
pub(super) struct View {
    pub(super) target: Target,
    /// Its process, if this rank may copy from and to the memory of that.
    pub(super) copies: Option<i32>,
}

/// The same while channels may be opened there.
#[derive(Debug)]
struct Known {
    view: Arc<View>,
    /// Its owner has ended it, while channels were being opened.
    gone: bool,
}

/// Failed requests of channels to one rank.
#[derive(Debug, Default)]
struct Failures {
    /// The last one that the rank refused.
    refused: Option<Failure>,
    /// The last ones that were lost, and how often that had happened then.
    lost: Option<(u64, Failure)>,
    /// The same of requests that may have failed because of the rank's death: why.
    suspected: Option<(u64, String)>,
}

#[derive(Debug)]
struct Failure {
    /// The count at this failure.
    number: u64,
    reason: String,
}

/// What a rank has for channels.
#[derive(Debug)]
pub(crate) struct Channels {
    arena: OnceLock<Arena>,
    making: Mutex<()>,
    /// By rank.
    views: ByRank<Mutex<Option<Known>>>,
    /// How many bundles and ranges of this rank's arena there are that the program may use.
    uses: AtomicU64,
    /// Whether this rank has left, so that the last use that ends tells of that.
    has_left: AtomicBool,
    /// Ranges of channels that are being opened.
    opening: Mutex<HashMap<GroupId, Closing>>,
    /// The number of requests that have failed for certain, and the last failures by rank.
    failures: AtomicU64,
    last: Mutex<HashMap<Rank, Failures>>,
    /// How often requests were lost with their connection, by rank.
    losses: ByRank<AtomicU64>,
    /// When a connection broke last, by rank, whatever was under way on it.
    breaks: Mutex<HashMap<Rank, Instant>>,
    pub(crate) zero_copy: ZeroCopySends,
    pub(super) shown: ShownMemory,
}

impl Channels {
    pub(crate) fn new(ranks: u32) -> Channels {
        Channels {
            arena: OnceLock::new(),
            making: Mutex::default(),
            views: ByRank::new(ranks),
            uses: AtomicU64::new(0),
            has_left: AtomicBool::new(false),
            opening: Mutex::default(),
            failures: AtomicU64::new(0),
            last: Mutex::default(),
            losses: ByRank::new(ranks),
            breaks: Mutex::default(),
            zero_copy: ZeroCopySends::default(),
            shown: ShownMemory::default(),
        }
    }

    /// This rank's arena, once there is one.
    pub(crate) fn arena(&self) -> Option<&Arena> {
        self.arena.get()
    }

    /// `peer` has closed its end that it had lent under this number.
    pub(crate) fn closed_by(&self, peer: Rank, lease: u32) {
        if let Some(arena) = self.arena() {
            arena.note_closed(peer, lease);
        }
    }

    /// The arena of `rank`, of this node, as far as this rank can reach it.
    pub(super) fn view(&self, rank: Rank) -> Option<Arc<View>> {
        let known = self.views.find(rank.index())?.lock();
        known.as_ref().map(|known| Arc::clone(&known.view))
    }

    /// The arena of `rank` is gone; with a generation, only that one. Open channels keep what they
    /// map. While channels are being opened arenas are kept too: a member may have opened one and
    /// left before others have.
    pub(crate) fn forget(&self, rank: Rank, generation: Option<u32>) {
        let opening = self.opening.lock();
        let Some(known) = self.views.find(rank.index()) else { return };
        let mut known = known.lock();
        match &mut *known {
            Some(other) if generation.is_some_and(|g| g != other.view.target.generation) => {}
            Some(known) if !opening.is_empty() => known.gone = true,
            known => *known = None,
        }
    }

    /// A connection with `rank` broke: messages of it may be lost that this rank has not asked for.
    pub(crate) fn note_break(&self, rank: Rank) {
        self.breaks.lock().insert(rank, Instant::now());
    }

    /// Whether a connection with `rank` broke within this time.
    pub(super) fn has_broken_within(&self, rank: Rank, time: Duration) -> bool {
        self.breaks.lock().get(&rank).is_some_and(|broke| broke.elapsed() < time)
    }

    /// The connection with `rank` broke although it lives: what was under way is lost.
    pub(crate) fn lost(&self, rank: Rank) {
        if let Some(of_rank) = self.last.lock().get_mut(&rank)
            && let Some((losses, reason)) = of_rank.suspected.take()
        {
            of_rank.lost = Some((losses, self.count(reason)));
        }
    }

    pub(super) fn failed(&self, rank: Rank, reason: &str, certain: bool) {
        let mut last = self.last.lock();
        let of_rank = last.entry(rank).or_default();
        if certain {
            of_rank.refused = Some(self.count(reason.to_owned()));
        } else {
            // Relaxed: users of a later connection are ordered behind this by its lock.
            let before = self.losses.of(rank.index()).fetch_add(1, Ordering::Relaxed);
            of_rank.suspected = Some((before + 1, reason.to_owned()));
        }
    }

    /// How often requests to `rank` were lost with their connection. While that stays the same, all
    /// that is put there arrives in order.
    #[inline]
    pub(crate) fn losses(&self, rank: Rank) -> u64 {
        self.losses.find(rank.index()).map_or(0, |losses| losses.load(Ordering::Relaxed))
    }

    /// Counts a failure. The caller holds the lock.
    fn count(&self, reason: String) -> Failure {
        // Relaxed: readers of the number then look under the lock.
        Failure { number: self.failures.fetch_add(1, Ordering::Relaxed) + 1, reason }
    }

    /// How many requests have failed so far.
    #[inline]
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// The first rank to which a request failed after the first `known` failures, of ranks to which
    /// so many were lost before a channel was opened: when such a loss is counted the channel may
    /// be there.
    pub(super) fn failure(
        &self,
        ranks: impl IntoIterator<Item = (Rank, u64)>,
        known: u64,
    ) -> Option<(Rank, String)> {
        let last = self.last.lock();
        ranks.into_iter().find_map(|(rank, losses)| {
            let of_rank = last.get(&rank)?;
            let lost = of_rank.lost.as_ref().filter(|(at, _)| *at > losses);
            let mut all = of_rank.refused.iter().chain(lost.map(|(_, failure)| failure));
            let found = all.find(|failure| failure.number > known)?;
            Some((rank, found.reason.clone()))
        })
    }

    /// Keeps the range of a channel that is being opened, across timeouts.
    pub(super) fn begin_opening(
        &self,
        group: GroupId,
        reserved: Reserved,
        writers: Vec<(Rank, u32)>,
    ) {
        let former = self.opening.lock().insert(group, Closing { reserved, writers });
        if let (Some(former), Some(arena)) = (former, self.arena()) {
            // Its call was given up: members may have completed it nevertheless.
            arena.close(former.reserved, former.writers);
        }
    }

    /// The range of the channel that is being opened.
    pub(super) fn opening(&self, group: GroupId) -> Option<Reserved> {
        self.opening.lock().get(&group).map(|opening| opening.reserved.clone())
    }

    /// Ends the opening of a channel. After the last one, forgets the arenas that have gone since.
    fn take_opening(&self, group: GroupId) -> Option<Closing> {
        let mut opening = self.opening.lock();
        let ended = opening.remove(&group);
        for known in self.views.iter().filter(|_| opening.is_empty()) {
            known.lock().take_if(|known| known.gone);
        }
        ended
    }

    /// The channel has been opened.
    pub(super) fn end_opening(&self, group: GroupId) -> Option<Reserved> {
        self.take_opening(group).map(|ended| ended.reserved)
    }

    /// The channel could not be opened. If others may have opened it, its range stays until they
    /// close it.
    pub(super) fn fail_opening(&self, group: GroupId, others_may: bool) {
        let (Some(failed), Some(arena)) = (self.take_opening(group), self.arena()) else { return };
        if others_may {
            arena.close(failed.reserved, failed.writers);
        } else {
            arena.free(failed.reserved);
        }
    }
}

impl Arena {
    fn new(segment: Segment) -> Arena {
        let bytes = FreeList::new(segment.size / PAGE * PAGE);
        let words = FreeList::new(ARENA_WORDS.into());
        let space = Mutex::new(Space { bytes, words, closing: Vec::new(), lease: 0 });
        Arena { segment: Arc::new(segment), space, far_ends: Mutex::default() }
    }

    /// Takes a range, and puts its words to 0. What else has to be reset is up to the caller.
    fn reserve(
        &self,
        bytes: u64,
        words: u32,
        writes_no_more: impl Fn(Rank) -> bool,
    ) -> Result<Reserved> {
        let mut space = self.space.lock();
        self.sweep(&mut space, writes_no_more);
        let used_up = |what: &str, needed: u64, available: u64| {
            let reason = format!(
                "the {what} for messages of collectives is used up; free prepared operations, or \
                 use fewer groups"
            );
            Error::Memory { needed, available, reason }
        };
        let Some(taken) = space.bytes.take(bytes) else {
            return Err(used_up("address space", bytes, space.bytes.longest()));
        };
        let Some(words) = space.words.take(words.into()) else {
            space.bytes.give(taken);
            return Err(used_up(
                "room for counters",
                u64::from(words) * 4,
                space.words.longest() * 4,
            ));
        };
        space.lease += 1;
        let lease = space.lease;
        drop(space);
        for word in words.clone() {
            // Relaxed: members learn of the range by an arrival, which publishes this.
            self.segment.notification(word as usize).store(0, Ordering::Relaxed);
        }
        self.segment.leases.begin(taken.clone(), lease);
        Ok(Reserved { bytes: taken, words, lease, device: None, device_bytes: 0..0 })
    }

    /// Members of other nodes have ends of a channel.
    pub(super) fn note_far_ends(&self, ends: impl Iterator<Item = (Rank, FarEnd)>) {
        let mut far_ends = self.far_ends.lock();
        far_ends.extend(ends.map(|(rank, end)| ((rank, end.lease), end)));
    }

    /// A device of this rank may have written to these ends, by rank and lease.
    pub(super) fn note_written(&self, ends: impl Iterator<Item = (Rank, u32)>) {
        let mut far_ends = self.far_ends.lock();
        for end in ends {
            if let Some(end) = far_ends.get_mut(&end) {
                end.by_device = true;
            }
        }
    }

    /// The ends of `rank`, of another node, that ranges here which this rank has closed wait for:
    /// they may not have heard of it, or have said in vain that they are closed too.
    fn awaited_ends(&self, rank: Rank) -> Vec<FarEnd> {
        let space = self.space.lock();
        let writers = space.closing.iter().flat_map(|closing| &closing.writers);
        let awaited = writers.filter(|(writer, _)| *writer == rank).map(|(_, word)| *word);
        let awaited: Vec<u32> = awaited.collect();
        let far_ends = self.far_ends.lock();
        let of_it = far_ends.iter().filter(|((of, _), _)| *of == rank).map(|(_, end)| *end);
        of_it.filter(|end| !end.by_device && awaited.contains(&end.heard_in)).collect()
    }

    /// The ends of `rank` to which something was lost that it has not been told of. It is, now that
    /// so many are lost.
    fn untold_losses(&self, rank: Rank, losses: u64) -> Vec<FarEnd> {
        let mut far_ends = self.far_ends.lock();
        let of_it = far_ends.iter_mut().filter(|((of, _), end)| *of == rank && end.losses < losses);
        let told = of_it.map(|(_, end)| {
            end.losses = losses;
            *end
        });
        told.collect()
    }

    /// `rank` has closed its end that it had lent under this number.
    fn note_closed(&self, rank: Rank, lease: u32) {
        let far_ends = self.far_ends.lock();
        if let Some(end) = far_ends.get(&(rank, lease)) {
            slots::set(self.segment.notification(end.heard_in as usize), CLOSED);
        }
    }

    /// Gives back a range that nobody else knows of.
    pub(super) fn free(&self, reserved: Reserved) {
        self.free_locked(&mut self.space.lock(), reserved);
    }

    fn free_locked(&self, space: &mut Space, reserved: Reserved) {
        // The device lets go of it first.
        drop(reserved.device);
        self.segment.end_lease(reserved.bytes.start);
        self.far_ends.lock().retain(|_, end| !reserved.words.contains(&end.heard_in.into()));
        if reserved.bytes.end - reserved.bytes.start >= RELEASE_BYTES {
            let start = self.segment.pointer().wrapping_add(reserved.bytes.start as usize);
            let len = (reserved.bytes.end - reserved.bytes.start) as usize;
            // SAFETY: a range of the arena's own mapping that nobody uses; it reads as zeroes
            // afterwards. Where the kernel refuses it, the memory stays.
            unsafe { libc::madvise(start.cast(), len, libc::MADV_REMOVE) };
        }
        space.bytes.give(reserved.bytes);
        space.words.give(reserved.words);
    }

    /// Gives back a range once none of `writers` writes there any more.
    pub(super) fn close(&self, reserved: Reserved, writers: Vec<(Rank, u32)>) {
        // Those hear of it by a closed end, which comes behind what the device was asked to write
        // there. An answer might come before that.
        let hear_of_it = writers.iter().filter(|_| reserved.device.is_some());
        let told = hear_of_it.map(|(rank, _)| *rank).collect();
        self.segment.end_data(reserved.bytes.start, told);
        self.space.lock().closing.push(Closing { reserved, writers });
    }

    /// Frees the ranges that nobody writes to any more.
    fn sweep(&self, space: &mut Space, writes_no_more: impl Fn(Rank) -> bool) {
        let done = |closing: &mut Closing| {
            closing.writers.retain(|(rank, word)| {
                // Acquire: all that the member wrote comes before its word.
                let word = self.segment.notification(*word as usize).load(Ordering::Acquire);
                word != CLOSED && !writes_no_more(*rank)
            });
            closing.writers.is_empty() && !closing.reserved.is_in_use()
        };
        let free: Vec<Closing> = space.closing.extract_if(.., done).collect();
        for closing in free {
            self.free_locked(space, closing.reserved);
        }
    }
}

#[cfg(test)]
mod tests;
