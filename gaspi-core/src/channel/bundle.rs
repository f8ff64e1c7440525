//! Channels that are opened together: they share a range of each member's arena, which each gives
//! back when its last one is closed.

use super::layout::{Layout, PAGE};
use super::rings::{Rings, RingsOfPart};
use super::spec::{ChannelSpec, DataSpec};
use super::{Member, counts};
use crate::control::PeerSlice;
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::runtime::Inner;
use crate::segment::Segment;
use crate::sync::{AtomicBool, Ordering, slots};
use crate::transport::endpoint::Departure;
use crate::transport::shm::area::{liveness, wake_kind};
use std::ops::Range;
use std::sync::Arc;

use super::arena::Reserved;

/// Where a channel lies in the ranges of its bundle, alike on all members.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) spec: ChannelSpec,
    pub(super) layout: Layout,
    pub(super) bytes_at: u64,
    pub(super) words_at: u32,
    pub(super) rings: RingsOfPart,
}

/// The channels of a bundle between so many members.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) parts: Vec<Part>,
    /// Their slots, behind the rest of all.
    pub(super) rings: Rings,
    /// Memory for data behind them: where it begins, and how much it is.
    pub(super) data_at: u64,
    pub(super) data: DataSpec,
    /// Where the status words begin, behind the data.
    pub(super) status_at: u64,
    /// Bytes and words of a member's range.
    pub(super) bytes: u64,
    pub(super) words: u32,
}

impl Parts {
    /// One channel with all the room that makes it fast, where `remotes` of the members are of
    /// other nodes than this rank.
    ///
    /// # Errors
    /// As [`many`](Parts::many).
    pub(super) fn one(spec: ChannelSpec, members: usize, remotes: usize) -> Result<Parts> {
        let (layouts, none) = (vec![(spec, Layout::new(spec, members))], DataSpec::default());
        Parts::new(layouts, none, members, Some(remotes as u64)).ok_or_else(|| too_much(1))
    }

    /// Channels that lie close to each other, and memory for data behind them, at the same places
    /// on all members.
    ///
    /// # Errors
    /// [`Error::Memory`] if they are more than an arena can hold.
    pub(super) fn many(specs: &[ChannelSpec], data: DataSpec, members: usize) -> Result<Parts> {
        let layouts = specs.iter().map(|spec| (*spec, Layout::compact(*spec, members))).collect();
        Parts::new(layouts, data, members, None).ok_or_else(|| too_much(specs.len()))
    }

    /// With room for slots of as many `remotes`, or of as many as there can be.
    fn new(
        layouts: Vec<(ChannelSpec, Layout)>,
        data: DataSpec,
        members: usize,
        remotes: Option<u64>,
    ) -> Option<Parts> {
        let (mut bytes, mut words) = (0u64, 0u32);
        let mut places = Vec::with_capacity(layouts.len());
        for (_, layout) in &layouts {
            places.push((bytes, words));
            bytes = bytes.checked_add(layout.bytes())?;
            words = words.checked_add(layout.words())?;
        }
        let alike = remotes.is_none();
        let (rings, of_parts) =
            Rings::new(bytes, members, alike, layouts.iter().map(|(_, layout)| layout))?;
        let parts = layouts.into_iter().zip(places).zip(of_parts);
        let parts = parts.map(|(((spec, layout), (bytes_at, words_at)), rings)| Part {
            spec,
            layout,
            bytes_at,
            words_at,
            rings,
        });
        let data_at = rings.end(remotes.unwrap_or_default()).checked_next_multiple_of(PAGE)?;
        let status_at = data_at.checked_add(data.bytes)?.checked_next_multiple_of(64)?;
        let bytes = status_at.checked_add(data.status_bytes())?.checked_next_multiple_of(PAGE)?;
        Some(Parts { parts: parts.collect(), rings, data_at, data, status_at, bytes, words })
    }

    /// What the device of a member has to know, which sees so many on other nodes: slots of
    /// messages with them, and data that it sends them from where it lies.
    pub(super) fn of_device(&self, remotes: u64) -> Range<u64> {
        let slots = self.rings.of_device(remotes);
        let end = if self.data.bytes > 0 { self.data_at + self.data.bytes } else { slots.end };
        slots.start..end
    }

    /// The others, and the words of this rank in which they say that they have closed their end.
    pub(super) fn closers(
        &self,
        ranks: &[Rank],
        me: usize,
        reserved: &Reserved,
    ) -> impl Iterator<Item = (Rank, u32)> {
        let start = reserved.words.start as u32;
        let layout = self.parts.first().map(|first| first.layout);
        let others = ranks.iter().enumerate().filter(move |(index, _)| *index != me);
        let word = move |index: usize| layout.map(|layout| start + layout.closed(index));
        others.filter_map(move |(index, rank)| Some((*rank, word(index)?)))
    }
}

#[cold]
fn too_much(channels: usize) -> Error {
    let reason = format!("{channels} channels need more than an arena holds");
    Error::Memory { needed: u64::MAX, available: 0, reason }
}

/// What channels that were opened together share.
#[derive(Debug)]
pub(super) struct Bundle {
    pub(super) inner: Arc<Inner>,
    pub(super) segment: Arc<Segment>,
    pub(super) me: usize,
    /// The members, with the starts of their ranges.
    pub(super) members: Box<[Member]>,
    /// Members of other nodes that have to hear when this rank closes its end, and whose end this
    /// one waits for: something has gone there, or come from there.
    pub(super) met: Box<[AtomicBool]>,
    /// Those of which something has come: they have met this rank. A device writes to these only,
    /// since it does so whether or not the range is still lent.
    pub(super) heard: Box<[AtomicBool]>,
    /// Of the first channel, whose words tell the end of all.
    pub(super) layout: Layout,
    pub(super) reserved: Reserved,
    /// Whether each member tells all others of its notices: the same on all.
    pub(super) has_few_far: bool,
}

impl Bundle {
    /// For its channels, and counted as long as there are any.
    ///
    /// # Errors
    /// This rank has left meanwhile.
    pub(super) fn share(self) -> Result<Arc<Bundle>> {
        let bundle = Arc::new(self);
        bundle.inner.begin_use()?;
        Ok(bundle)
    }

    /// The word in which a member says that it has closed its end.
    fn own_word(&self, of: usize) -> u32 {
        self.members[self.me].words + self.layout.closed(of)
    }

    /// Whether a member has closed its end: it sends nothing more.
    pub(super) fn has_closed(&self, member: usize) -> bool {
        let word = self.segment.notification(self.own_word(member) as usize);
        // Acquire: what it sent before is seen.
        member != self.me && word.load(Ordering::Acquire) == counts::CLOSED
    }

    /// Whether a member says that messages of it are lost.
    pub(super) fn has_lost(&self, member: usize) -> bool {
        let word = self.members[self.me].words + self.layout.lost(member);
        // Acquire: what came of it before is seen.
        self.segment.notification(word as usize).load(Ordering::Acquire) == counts::LOST
    }

    /// Something goes to a member of another node, or has come from it.
    #[inline]
    pub(super) fn meet(&self, member: &Member) {
        let met = &self.met[member.index];
        // Relaxed: looked at by the last user of the bundle. A look is cheaper than a write.
        if !met.load(Ordering::Relaxed) {
            met.store(true, Ordering::Relaxed);
        }
    }

    /// Whether something has come from a member of another node, as far as anybody has looked.
    pub(super) fn has_heard(&self, member: &Member) -> bool {
        // Relaxed: who is heard of has met this rank, whoever of this rank's threads sees it.
        self.heard[member.index].load(Ordering::Relaxed)
    }

    /// Something has come from a member of another node.
    pub(super) fn hear(&self, member: &Member) {
        self.heard[member.index].store(true, Ordering::Relaxed);
    }

    /// Whether this rank's device may have written to a member.
    fn writes_by_device(&self, member: &Member) -> bool {
        member.device.is_some() && self.has_heard(member)
    }

    fn has_met(&self, member: &Member) -> bool {
        member.start.is_some() || self.met[member.index].load(Ordering::Relaxed)
    }

    /// Whether this rank and a member of another node hear of each other without a new connection.
    pub(super) fn is_in_touch(&self, member: &Member) -> bool {
        self.has_met(member) || self.inner.is_reached(member.rank)
    }

    /// Tells a member that nothing of this rank follows.
    fn tell(&self, member: &Member) {
        let inner = &*self.inner;
        let word = member.words + self.layout.closed(self.me);
        if let Some(view) = &member.view {
            // Release, in `set`: all that this rank wrote there comes before it.
            slots::set(view.target.notification(word as usize), counts::CLOSED);
            inner.ranks.area.wake_for(member.rank, wake_kind::ARRIVAL);
            return;
        }
        if !self.is_in_touch(member) && !self.has_closed(member.index) {
            // It hears of it when it sends something, unless it has closed its end: then it waits.
            return;
        }
        if self.writes_by_device(member) && inner.channels.losses(member.rank) != member.losses {
            // What a device was asked to write might come after this.
            return;
        }
        let put = member.far_end(&self.layout, self.me, self.own_word(member.index)).closed();
        // A member that cannot be told has ended, and sees the end of this rank.
        let _ = inner.endpoint(member.rank).put(put, None, Departure::Now);
    }
}

/// The data of a bundle: memory that its members on a node have mapped, and that is not given back
/// before all of them have closed their channels. Behind it lie the status words.
#[derive(Debug)]
pub struct SharedData {
    pub(super) bundle: Arc<Bundle>,
    data_at: u64,
    bytes: u64,
    pub(super) status_at: u64,
    pub(super) status_words: u32,
}

impl SharedData {
    pub(super) fn new(bundle: &Arc<Bundle>, all: &Parts) -> SharedData {
        let DataSpec { bytes, status_words } = all.data;
        let (data_at, status_at) = (all.data_at, all.status_at);
        SharedData { bundle: Arc::clone(bundle), data_at, bytes, status_at, status_words }
    }

    /// That of this rank, at the start of a page. What is there first is undefined.
    pub fn own(&self) -> PeerSlice<'_> {
        let start = self.bundle.segment.pointer();
        let offset = self.bundle.reserved.bytes.start + self.data_at;
        PeerSlice::new(start.wrapping_add(offset as usize), self.bytes as usize)
    }

    /// That of a member, where it is mapped here.
    pub fn of(&self, member: usize) -> Option<PeerSlice<'_>> {
        if member == self.bundle.me {
            return Some(self.own());
        }
        let start = self.bundle.members[member].start?;
        Some(PeerSlice::new(start.wrapping_add(self.data_at as usize), self.bytes as usize))
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        let inner = &*self.inner;
        // A forked child has no right to close for its parent; nor does one write to others that
        // has ended for them.
        if inner.process != std::process::id() {
            return;
        }
        if inner.ranks.liveness(inner.ranks.me) == liveness::DEAD {
            return inner.end_use();
        }
        let others = || self.members.iter().filter(|member| member.index != self.me);
        let writers = others().filter(|member| self.has_met(member));
        let writers = writers.map(|member| (member.rank, self.own_word(member.index))).collect();
        // First: who has put something here before is connected, and told. Others are answered.
        // Should a connection break, those that are waited for are told again.
        if let Some(arena) = inner.channels.arena() {
            let written = others().filter(|member| self.writes_by_device(member));
            arena.note_written(written.map(|member| (member.rank, member.lease)));
            arena.close(self.reserved.clone(), writers);
        }
        // One that has left tells all of its node at once, and has said goodbye to the others.
        if inner.check_open().is_ok() {
            others().for_each(|member| self.tell(member));
        }
        inner.end_use();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn channels_that_lie_close_do_not_overlap(
            sizes in prop::collection::vec((1..9u32, 0..4000u64, 0..2000u64), 1..20),
            members in 1..20usize,
        ) {
            let spec = |(slots, message_bytes, stage_bytes)| {
                ChannelSpec { slots, message_bytes, stage_bytes }.rounded().expect("a small one")
            };
            let specs: Vec<ChannelSpec> = sizes.into_iter().map(spec).collect();
            let data = DataSpec { bytes: 100, status_words: 7 };
            let all = Parts::many(&specs, data, members).expect("they fit");
            for pair in all.parts.windows(2) {
                let (bytes, words) = (pair[0].layout.bytes(), pair[0].layout.words());
                prop_assert!(pair[0].bytes_at + bytes <= pair[1].bytes_at);
                prop_assert!(pair[0].words_at + words <= pair[1].words_at);
            }
            let last = all.parts.last().expect("some");
            for remotes in 0..members as u64 {
                let by_device = all.of_device(remotes);
                prop_assert!(last.bytes_at + last.layout.bytes() <= by_device.start);
                prop_assert!(all.rings.end(remotes) <= all.data_at);
                prop_assert!(by_device.end == all.data_at + 100);
            }
            prop_assert!(all.data_at + 100 <= all.status_at);
            prop_assert!(all.status_at.is_multiple_of(64) && all.status_at + 28 <= all.bytes);
            prop_assert!(last.words_at + last.layout.words() <= all.words);
        }
    }
}
