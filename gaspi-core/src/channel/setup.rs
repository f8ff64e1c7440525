//! How the members of a group open channels together.
//!
//! Each takes a range of its arena, registers the arena with the other members of its node where it
//! is not yet, or tells of it in a step where these are many, and arrives with the place of its
//! range. Members of other nodes need nothing else: no connection is made with them before one
//! sends something, but where data may go by devices alone, which have to know each other. All of
//! it can be continued after a timeout, as with segments made by a group.

use super::abort_notice::{AbortNotice, Notices, has_few_far};
use super::arena::Reserved;
use super::arrivals::ArrivalSlots;
use super::bundle::{Bundle, Parts, SharedData};
use super::layout::LINE;
use super::memory::FoundMemory;
use super::rings::{Relation, Relations};
use super::spec::{ChannelSpec, DataSpec, digest};
use super::status::status_words;
use super::{Channel, KnownFailures, Member, OwnPart};
use crate::callback::may_wait;
use crate::control::leaders::crowded::is_crowded;
use crate::control::reason::{Report, has_failed};
use crate::control::{CallKey, CallKind, GroupCall, describe_call};
use crate::error::{Error, Result};
use crate::ids::{GroupId, Rank};
use crate::runtime::{Inner, Runtime};
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use crate::timeout::{Deadline, Timeout};
use crate::transport::verbs::Verbs;
use crate::wait::{Call, waiting_group};
use crate::wire::message::MemoryKey;
use std::sync::Arc;

/// Stages.
const RESERVING: u64 = 0;
const REGISTERING: u64 = 1;
const TELLING: u64 = 2;
const PAIRING: u64 = 3;
const MEETING: u64 = 4;

/// The call that opens channels.
fn key_of(kind: CallKind, details: u64) -> CallKey {
    let signature = kind.signature(details);
    CallKey { kind, arguments: details, signature, describe: describe_call }
}

/// How the members are placed, on which all agree. It never changes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placement {
    /// Each member may copy from and to the processes of all others of its node.
    pub(super) all_reachable: bool,
    /// Members share cores.
    pub(super) shares_cores: bool,
    /// All members are on one machine, of whatever nodes.
    pub(super) is_one_machine: bool,
}

/// What a member's arrival says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Offer {
    /// Why the member could not do its part, if it could not.
    report: Report,
    /// Where its part and its words begin in its arena.
    base: u64,
    words: u32,
    /// Under which number it lends the range.
    lease: u32,
    /// Whether all other members of its node may copy from and to its process.
    reachable: bool,
    /// Whether it finds that the ranks of its node share cores: a limit may be its own.
    shares_cores: bool,
    /// Whether its data may go by devices alone, so that pairs are made now.
    pairs: bool,
    /// By what devices of other nodes reach its part, if its own has taken it.
    key: Option<MemoryKey>,
}

/// Bits of the upper half of the fourth word of an offer; from [`DEVICE`] on the number of the
/// device.
const REACHABLE: u64 = 1;
const SHARES_CORES: u64 = 2;
const HAS_KEY: u64 = 4;
const PAIRS: u64 = 8;
const DEVICE: u32 = 8;

impl Offer {
    fn words(self) -> [u64; 6] {
        let Offer { report: [status, details], base, words, lease, pairs, key, .. } = self;
        let flag = |is: bool, bit: u64| if is { bit } else { 0 };
        let flags = flag(self.reachable, REACHABLE)
            | flag(self.shares_cores, SHARES_CORES)
            | flag(pairs, PAIRS)
            | key.map_or(0, |key| HAS_KEY | u64::from(key.device) << DEVICE);
        let (address, key) = key.map_or((0, 0), |key| (key.address, key.key));
        let last = u64::from(key) | u64::from(lease) << 32;
        [status, details, base, u64::from(words) | flags << 32, address, last]
    }

    fn from_words([status, details, base, word, address, last]: [u64; 6]) -> Offer {
        let (words, flags) = (word as u32, word >> 32);
        let (key, lease) = (last as u32, (last >> 32) as u32);
        let is = |bit: u64| flags & bit != 0;
        let device = (flags >> DEVICE) as u8;
        let key = is(HAS_KEY).then_some(MemoryKey { device, key, address });
        let (reachable, shares_cores, pairs) = (is(REACHABLE), is(SHARES_CORES), is(PAIRS));
        let report = [status, details];
        Offer { report, base, words, lease, reachable, shares_cores, pairs, key }
    }
}

impl Inner {
    /// Takes a range for channels with these members and clears what they look at in it.
    fn reserve_parts(&self, call: &GroupCall<'_>, group: GroupId, all: &Parts) -> Result<()> {
        let ranks = call.ranks();
        let mut reserved = self.reserve(all.bytes, all.words)?;
        if let Some(arena) = self.channels.arena() {
            let start = arena.segment.pointer().wrapping_add(reserved.bytes.start as usize);
            for part in &all.parts {
                let (start, layout) = (start.wrapping_add(part.bytes_at as usize), part.layout);
                let notices = (0..ranks.len()).map(|member| layout.received_notice(member));
                for offset in notices.chain([layout.notice()]) {
                    let notice = start.wrapping_add(offset as usize).cast::<AbortNotice>();
                    // SAFETY: inside of the range, aligned, and nobody else knows it yet.
                    unsafe { &*notice }.clear();
                }
                let firsts = [layout.arrival_slot(0), layout.arrival_slot(1)];
                let counts = layout.arrival_counts().map(|counts| [counts, counts + 8]);
                let of_all = layout.slots_of_all().filter(|_| call.me() == 0);
                let of_all = of_all.into_iter().flatten().step_by(LINE as usize);
                let words = firsts.into_iter().chain(of_all);
                let words = words.chain(counts.into_iter().flatten());
                for offset in words {
                    let number = start.wrapping_add(offset as usize).cast::<AtomicU64>();
                    // The number of a line is its first word.
                    // SAFETY: inside of the range, aligned, and nobody else knows it yet.
                    let number = unsafe { &*number };
                    // Relaxed: published by the arrival.
                    number.store(0, Ordering::Relaxed);
                }
            }
            for word in status_words(start.wrapping_add(all.status_at as usize), all.data) {
                // Relaxed: published by the arrival.
                word.store(0, Ordering::Relaxed);
            }
        }
        let remotes = ranks.iter().filter(|rank| !self.ranks.is_local(**rank)).count();
        if remotes > 0 {
            self.show_to_device(&mut reserved, all.of_device(remotes as u64))?;
        }
        // What others send by connections goes nowhere once the range has been given up, and their
        // devices write to who is heard of, but for those that know each other from the beginning.
        let by_device = reserved.device.is_some() && self.has_to_pair();
        let writes = |(rank, _): &(Rank, u32)| self.ranks.is_local(*rank) || by_device;
        let writers = all.closers(ranks, call.me(), &reserved).filter(writes).collect();
        self.channels.begin_opening(group, reserved, writers);
        Ok(())
    }

    /// Whether all other members of this node may copy from and to this process, or it from and to
    /// theirs: if one of both is so for all members, both are.
    fn is_reachable(&self, ranks: &[Rank]) -> bool {
        let Some(arena) = self.channels.arena() else { return false };
        if self.job.machine.without_cross_memory {
            return false;
        }
        if self.maps_arenas(ranks) {
            return self.copies_all(ranks);
        }
        let others =
            ranks.iter().filter(|rank| self.ranks.is_local(**rank) && **rank != self.ranks.me);
        others.into_iter().all(|rank| arena.segment.answer_of(*rank) == Some(1))
    }
}

impl Runtime {
    /// Opens a channel with all members of `group`, which do the same. After a timeout, call again
    /// with the same arguments to continue. If one rank cannot, all fail.
    ///
    /// # Errors
    /// [`Error::Number`] if the channel would be too large, [`Error::Memory`], and those of
    /// registering segments and of [`barrier`](Runtime::barrier).
    #[doc(hidden)]
    pub fn channel_open(
        &self,
        group: GroupId,
        spec: ChannelSpec,
        timeout: Timeout,
    ) -> Result<Channel> {
        let spec = spec.rounded()?;
        let key = key_of(CallKind::ChannelOpen, spec.details());
        let opened = self.open_parts(group, key, timeout, |ranks| {
            let ranks_here = self.shared();
            let remotes = ranks.iter().filter(|rank| !ranks_here.ranks.is_local(**rank)).count();
            Parts::one(spec, ranks.len(), remotes)
        });
        opened?.0.pop().ok_or(Error::NotInitialised)
    }

    /// Opens many channels in one meeting, as [`channel_open`](Runtime::channel_open) opens one.
    /// They lie close to each other: each takes little more than the bytes of its messages and of
    /// two stages. With them comes memory for data, which the members of a node share. All of it is
    /// given back when the last channel has been closed and the memory dropped, by all who could
    /// still reach it.
    ///
    /// # Errors
    /// As [`channel_open`](Runtime::channel_open).
    #[doc(hidden)]
    pub fn channels_open(
        &self,
        group: GroupId,
        specs: &[ChannelSpec],
        data: DataSpec,
        timeout: Timeout,
    ) -> Result<(Vec<Channel>, SharedData)> {
        if specs.is_empty() {
            let reason = "at least one channel is opened".to_owned();
            return Err(Error::Number { number: 0, reason });
        }
        let specs = specs.iter().map(|spec| spec.rounded()).collect::<Result<Vec<_>>>()?;
        let key = key_of(CallKind::ChannelsOpen, digest(&specs, data));
        self.open_parts(group, key, timeout, |ranks| Parts::many(&specs, data, ranks.len()))
    }

    /// Opens the channels whose places `layout` gives.
    fn open_parts(
        &self,
        group: GroupId,
        key: CallKey,
        timeout: Timeout,
        layout: impl FnOnce(&[Rank]) -> Result<Parts>,
    ) -> Result<(Vec<Channel>, SharedData)> {
        may_wait(timeout, "opening a channel")?;
        let (inner, deadline) = (self.shared(), timeout.deadline());
        let all = layout(&self.group_ranks(group)?)?;
        let mut call = inner.group_call(group, key)?;
        let failures = inner.channels.failures();
        inner.prepare_parts(&mut call, group, &all, deadline)?;
        let (failure, met) = match inner.meet_for_parts(&mut call, group, deadline) {
            (_, Err(error)) if error.is_timeout() => return Err(error),
            met => met,
        };
        let (failed, all_arrived) = (failure.is_some(), met.is_ok());
        let offers = met.and_then(|()| call.payloads());
        let offers: Result<Vec<Offer>> =
            offers.map(|words| words.into_iter().map(Offer::from_words).collect());
        let is_failed = |offer: &Offer| has_failed(offer.report);
        let anyone_failed = offers.as_ref().is_ok_and(|offers| offers.iter().any(is_failed));
        let outcome = match (failure, offers) {
            (Some(error), _) | (None, Err(error)) => Err(error),
            (None, Ok(offers)) => {
                inner.connect_parts((&call, &offers), group, &all, failures, deadline)
            }
        };
        if let Err(error) = &outcome {
            // A member that has seen all arrive alike, and none fail, has opened it.
            let differs = matches!(error, Error::Mismatch { .. }) && !all_arrived;
            let others_may = !failed && !differs && !anyone_failed;
            inner.channels.fail_opening(group, others_may);
        }
        call.finish();
        outcome
    }
}

impl Inner {
    /// What a rank does before it arrives. Failures are kept in the call, to be reported to all.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    fn prepare_parts(
        &self,
        call: &mut GroupCall<'_>,
        group: GroupId,
        all: &Parts,
        deadline: Deadline,
    ) -> Result<()> {
        if call.cursor() == RESERVING {
            match self.reserve_parts(call, group, all) {
                Ok(()) => call.set_cursor(REGISTERING),
                Err(error) => {
                    call.set_failure(error);
                    call.set_cursor(TELLING);
                }
            }
        }
        if call.cursor() == REGISTERING {
            if let Some(arena) = self.channels.arena().filter(|_| !self.maps_arenas(call.ranks())) {
                let course = waiting_group(Call::Channel, group);
                let local = call.ranks().iter().copied().filter(|rank| self.ranks.is_local(*rank));
                let (segment, local) = (&arena.segment, local.collect::<Vec<_>>());
                let lacks = |rank| call.lacks(rank);
                match self.register_all(segment, &local, deadline, course, lacks) {
                    Err(error) if error.is_timeout() => return Err(error),
                    Err(error) => call.set_failure(error),
                    Ok(()) => {}
                }
            }
            call.set_cursor(TELLING);
        }
        Ok(())
    }

    /// Takes the steps of all members, the last of which tells what each offers. Gives why this
    /// rank cannot do its part, and how the steps went.
    fn meet_for_parts(
        &self,
        call: &mut GroupCall<'_>,
        group: GroupId,
        deadline: Deadline,
    ) -> (Option<Error>, Result<()>) {
        if call.cursor() == TELLING {
            if self.tells_of_arenas(call.ranks()) {
                let failure = call.failure();
                if let Err(error) = self.exchange_arenas(call, deadline) {
                    return (failure, Err(error));
                }
            }
            if call.failure().is_none() {
                self.want_devices(call.ranks());
            }
            call.set_cursor(PAIRING);
        }
        if call.cursor() == PAIRING {
            if call.failure().is_none() {
                match self.await_devices(call.ranks(), group, deadline) {
                    Err(error) if error.is_timeout() => return (None, Err(error)),
                    Err(error) => call.set_failure(error),
                    Ok(()) => {}
                }
            }
            call.set_cursor(MEETING);
        }
        let failure = call.failure();
        let report = call.report(failure.as_ref());
        let offer = self.offer(call, group, report);
        call.arrive(&offer.words());
        let met = call.await_all(deadline);
        (failure, met)
    }

    /// Whether devices of all members know each other before the first message.
    fn has_to_pair(&self) -> bool {
        self.endpoints.verbs(self).is_some_and(|verbs| verbs.table.has_to_carry_messages())
    }

    /// The members to which data may go by the device alone, with the device.
    fn by_device_only<'a>(
        &'a self,
        ranks: &'a [Rank],
    ) -> Option<(Verbs<'a>, impl Iterator<Item = Rank> + 'a)> {
        let verbs = self.endpoints.verbs(self)?;
        let remote = ranks.iter().copied().filter(|rank| !self.ranks.is_local(*rank));
        verbs.table.has_to_carry_messages().then_some((verbs, remote))
    }

    /// Has the device carry messages to all members to which data may go by it alone.
    fn want_devices(&self, ranks: &[Rank]) {
        let Some((verbs, remote)) = self.by_device_only(ranks) else { return };
        for rank in remote {
            // Who cannot be reached is connected to when there is something to send.
            let _ = self.endpoint(rank).connect();
            verbs.want_messages(rank);
        }
    }

    /// Waits until the device carries them, from the first one on.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::Refused`] where a pair cannot be made; a member has ended.
    fn await_devices(&self, ranks: &[Rank], group: GroupId, deadline: Deadline) -> Result<()> {
        let Some((_, remote)) = self.by_device_only(ranks) else { return Ok(()) };
        let course = waiting_group(Call::Channel, group);
        for rank in remote {
            self.await_device(rank, deadline, course)?;
        }
        Ok(())
    }

    fn offer(&self, call: &GroupCall<'_>, group: GroupId, report: Report) -> Offer {
        let reserved = self.channels.opening(group);
        let key = reserved.as_ref().and_then(Reserved::key);
        let (base, words, lease) = reserved.map_or((0, 0, 0), |reserved| {
            (reserved.bytes.start, reserved.words.start as u32, reserved.lease)
        });
        let reachable = self.is_reachable(call.ranks());
        let (shares_cores, pairs) = (!self.waiter.spins(), self.has_to_pair());
        Offer { report, base, words, lease, reachable, shares_cores, pairs, key }
    }

    /// Puts channels together from what all members have offered.
    fn connect_parts(
        self: &Arc<Inner>,
        (call, offers): (&GroupCall<'_>, &[Offer]),
        group: GroupId,
        all: &Parts,
        failures: u64,
        deadline: Deadline,
    ) -> Result<(Vec<Channel>, SharedData)> {
        let ranks = call.ranks_shared();
        if let Some(failed) = offers.iter().position(|offer| has_failed(offer.report)) {
            let what = ("channel_open", waiting_group(Call::Channel, group));
            return Err(call.reported(failed, offers[failed].report, what, deadline));
        }
        let Some(arena) = self.channels.arena() else { return Err(Error::NotInitialised) };
        let members = self.members_of(&ranks, offers, arena.segment.pointer(), deadline)?;
        let nodes: Vec<u32> = members.iter().map(|member| member.node).collect();
        let relations = Relations::new(&nodes, call.me());
        let reserved = self.channels.end_opening(group).ok_or(Error::NotInitialised)?;
        let Some(first) = all.parts.first() else { return Err(Error::NotInitialised) };
        let placement = self.placement(&ranks, offers);
        let (inner, segment, me) = (Arc::clone(self), Arc::clone(&arena.segment), call.me());
        let (start, layout) = (reserved.bytes.start, first.layout);
        // Both in the order of the members, without this rank.
        let others = members.iter().filter(|member| member.index != me);
        let closers = all.closers(&ranks, me, &reserved).zip(others);
        let far = closers.filter(|(_, member)| member.start.is_none());
        arena.note_far_ends(
            far.map(|((rank, word), member)| (rank, member.far_end(&first.layout, me, word))),
        );
        let known = || self.known_members(offers, &reserved).map(AtomicBool::new).collect();
        let (met, heard, has_few_far) = (known(), known(), has_few_far(&nodes));
        let bundle =
            Bundle { inner, segment, me, members, met, heard, layout, reserved, has_few_far };
        let bundle = bundle.share()?;
        let channels = all.parts.iter().map(|part| {
            let moved = |(member, relation): (&Member, &Relation)| {
                let rings = relations.rings(&all.rings, part.rings, *relation);
                member.of_part((part.bytes_at, part.words_at), rings)
            };
            let slots = all.rings.rings_of_remotes(part.rings, relations.remotes());
            let members: Box<[Member]> =
                bundle.members.iter().zip(&relations.all).map(moved).collect();
            Channel {
                inner: Arc::clone(self),
                group,
                spec: part.spec,
                layout: part.layout,
                me: call.me(),
                arrival_slots: ArrivalSlots::new(&members, &part.layout),
                members,
                segment: Arc::clone(&arena.segment),
                own: OwnPart {
                    start: start + part.bytes_at,
                    slots: start + slots.start..start + slots.end,
                },
                bundle: Arc::clone(&bundle),
                placement,
                known_failures: KnownFailures {
                    before: failures,
                    harmless: AtomicU64::new(failures),
                },
                found: FoundMemory::default(),
                notices: Notices::default(),
                ranks: Arc::clone(&ranks),
            }
        });
        let data = SharedData::new(&bundle, all);
        Ok((channels.collect(), data))
    }

    /// Whether this rank and each member wait for each other's end, and write to each other by
    /// device, before anything has been sent: settings may differ from rank to rank.
    fn known_members(&self, offers: &[Offer], reserved: &Reserved) -> impl Iterator<Item = bool> {
        let pairs = self.has_to_pair();
        let by_device = |offer: &Offer| offer.key.or(reserved.key()).is_some();
        offers.iter().map(move |offer| pairs && offer.pairs && by_device(offer))
    }

    fn placement(&self, ranks: &[Rank], offers: &[Offer]) -> Placement {
        let machine = |rank: Rank| self.ranks.cards.at(rank).machine();
        let is_one_node = ranks.iter().all(|rank| self.ranks.is_local(*rank));
        // Within a node a limit may be one member's own. Between nodes channels go by what steps of
        // groups go by, which ranks know without having told each other.
        let shares_cores = match is_one_node {
            true => offers.iter().any(|offer| offer.shares_cores),
            false => is_crowded(&self.ranks, ranks),
        };
        Placement {
            all_reachable: offers.iter().all(|offer| offer.reachable),
            shares_cores,
            is_one_machine: ranks.iter().all(|rank| machine(*rank) == machine(self.ranks.me)),
        }
    }

    /// The members as this rank reaches them; its own arena begins at `own`.
    fn members_of(
        &self,
        ranks: &[Rank],
        offers: &[Offer],
        own: *mut u8,
        deadline: Deadline,
    ) -> Result<Box<[Member]>> {
        let mut nodes = Vec::new();
        ranks
            .iter()
            .zip(offers)
            .enumerate()
            .map(|(index, (rank, offer))| {
                let is_mapped = *rank != self.ranks.me && self.ranks.is_local(*rank);
                let view = is_mapped.then(|| self.view_of(*rank, deadline)).transpose()?;
                let arena = view.as_ref().map_or(own, |view| view.target.start(0));
                let start =
                    self.ranks.is_local(*rank).then(|| arena.wrapping_add(offer.base as usize));
                let name = self.ranks.cards.at(*rank).node();
                let node = nodes.iter().position(|known| *known == name).unwrap_or_else(|| {
                    nodes.push(name);
                    nodes.len() - 1
                });
                Ok(Member {
                    index,
                    rank: *rank,
                    node: node as u32,
                    start,
                    base: offer.base,
                    words: offer.words,
                    lease: offer.lease,
                    device: offer.key.and_then(|key| self.endpoints.usable_key(&[key])),
                    view,
                    rings: [0; 3],
                    received: AtomicU64::new(0),
                    taken: AtomicU64::new(0),
                    told: AtomicU64::new(0),
                    untold: AtomicU64::new(0),
                    losses: self.channels.losses(*rank),
                })
            })
            .collect()
    }

    /// The arena of a member of this node that has just arrived.
    fn view_of(&self, rank: Rank, deadline: Deadline) -> Result<Arc<super::arena::View>> {
        self.channels.view(rank).ok_or_else(|| {
            // It was there when the member arrived. One that dies may be seen to be gone a moment
            // later than its memory.
            self.explain(rank, deadline);
            match self.ranks.check_alive(rank, "channel_open") {
                Err(error) => error,
                Ok(()) => {
                    self.ranks.refused(rank, "its memory for messages of collectives is gone")
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_rides_in_six_words() {
        let key = |device, key, address| Some(MemoryKey { device, key, address });
        for (key, words) in [
            (None, 0),
            (key(0, 0, 0), u32::MAX),
            (key(u8::MAX, u32::MAX, u64::MAX), 1),
            (key(3, 1 << 31, 1 << 57), 7),
        ] {
            for flags in [[false, true, false], [true, false, false], [false, false, true]] {
                let (report, [reachable, shares_cores, pairs]) = ([0, 9], flags);
                let (base, lease) = (1 << 40, u32::MAX - words);
                let offer =
                    Offer { report, base, words, lease, reachable, shares_cores, pairs, key };
                assert_eq!(Offer::from_words(offer.words()), offer);
            }
        }
    }
}
