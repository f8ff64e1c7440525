//! How the members of a group open a channel together.
//!
//! Each takes a range of its arena, makes the arena known to the other members where it is not yet,
//! and arrives with the place of its range. Registrations and the arrival are those of segments
//! made by a group, so all of it can be continued after a timeout.

use super::arena::Reserved;
use super::layout::{LINE, Layout};
use super::{Channel, Member};
use crate::control::reason::{Report, has_failed};
use crate::control::{CallKey, CallKind, GroupCall, describe_call};
use crate::error::{Error, Result};
use crate::ids::{GroupId, Rank};
use crate::runtime::{Inner, Runtime};
use crate::sync::Mutex;
use crate::sync::{AtomicU64, Ordering};
use crate::timeout::{Deadline, Timeout};
use crate::transport::tcp::endpoint_table::waiting_group;
use crate::wait::Call;
use std::sync::Arc;

/// Stages.
const RESERVING: u64 = 0;
const REGISTERING: u64 = 1;
const MEETING: u64 = 2;

/// Limits of a channel, which fit into a fingerprint.
const SLOTS_MAX: u32 = (1 << 16) - 1;
const MESSAGE_BYTES_MAX: u64 = (1 << 30) - LINE;
const STAGE_BYTES_MAX: u64 = (1 << 26) - LINE;
/// Bits of the largest number of lines of a message, and of staging.
const MESSAGE_BITS: u32 = 24;
const STAGE_BITS: u32 = 20;

/// How large a channel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelSpec {
    /// Messages between two members that the receiver has not taken, 1..=65535.
    pub slots: u32,
    /// Bytes of a message behind its header of 64 bytes; below 1 GiB.
    pub message_bytes: u64,
    /// Bytes of staging that go with an arrival; below 64 MiB.
    pub stage_bytes: u64,
}

impl ChannelSpec {
    /// Bytes of a slot.
    #[inline]
    pub(super) fn slot_bytes(&self) -> u64 {
        super::HEAD_BYTES as u64 + self.message_bytes
    }

    /// In whole cache lines, and checked.
    pub(super) fn rounded(self) -> Result<ChannelSpec> {
        let refuse = |number: u64, what: &str, max: u64| Error::Number {
            number,
            reason: format!("{what} of a channel can be at most {max}"),
        };
        if self.slots == 0 || self.slots > SLOTS_MAX {
            let reason = format!("a channel has 1 to {SLOTS_MAX} slots");
            return Err(Error::Number { number: self.slots.into(), reason });
        }
        if self.message_bytes > MESSAGE_BYTES_MAX {
            return Err(refuse(self.message_bytes, "message_bytes", MESSAGE_BYTES_MAX));
        }
        if self.stage_bytes > STAGE_BYTES_MAX {
            return Err(refuse(self.stage_bytes, "stage_bytes", STAGE_BYTES_MAX));
        }
        Ok(ChannelSpec {
            slots: self.slots,
            message_bytes: self.message_bytes.next_multiple_of(LINE),
            stage_bytes: self.stage_bytes.next_multiple_of(LINE),
        })
    }

    /// What has to be the same on all members.
    fn details(self) -> u64 {
        let (message, stage) = (self.message_bytes / LINE, self.stage_bytes / LINE);
        (u64::from(self.slots) << (MESSAGE_BITS + STAGE_BITS)) | (message << STAGE_BITS) | stage
    }

    fn of_details(details: u64) -> ChannelSpec {
        let field = |from: u32, bits: u32| details >> from & ((1 << bits) - 1);
        ChannelSpec {
            slots: (details >> (MESSAGE_BITS + STAGE_BITS)) as u32,
            message_bytes: field(STAGE_BITS, MESSAGE_BITS) * LINE,
            stage_bytes: field(0, STAGE_BITS) * LINE,
        }
    }

    fn key(self) -> CallKey {
        let (kind, details) = (CallKind::ChannelOpen, self.details());
        let fingerprint = kind.fingerprint(details);
        CallKey { kind, arguments: details, fingerprint, describe: describe_call }
    }
}

/// A call in words, from the details of its fingerprint.
pub(crate) fn describe(details: u64) -> String {
    let ChannelSpec { slots, message_bytes, stage_bytes } = ChannelSpec::of_details(details);
    format!("channel_open with {slots} slots of {message_bytes} bytes, staging of {stage_bytes}")
}

/// What a member's arrival says.
#[derive(Debug, Clone, Copy)]
struct Offer {
    /// Why the member could not do its part, if it could not.
    report: Report,
    /// Where its part and its words begin in its arena.
    base: u64,
    words: u64,
    /// Whether all other members of its node may copy from and to its process.
    reachable: bool,
    /// Whether it takes its node for one whose ranks share cores: a limit may be its own.
    shares_cores: bool,
}

impl Offer {
    fn words(self) -> [u64; 6] {
        let Offer { report: [status, details], base, words, reachable, shares_cores } = self;
        [status, details, base, words, reachable.into(), shares_cores.into()]
    }

    /// That of a member, of the step awaited last.
    fn of(call: &GroupCall<'_>, member: usize) -> Offer {
        let [status, details, base, words, reachable, shares] = call.payload(member, call.step());
        let (reachable, shares_cores) = (reachable != 0, shares != 0);
        Offer { report: [status, details], base, words, reachable, shares_cores }
    }
}

impl Inner {
    /// Takes a range for a channel with these members and clears what they look at in it.
    fn reserve_part(&self, call: &GroupCall<'_>, group: GroupId, spec: ChannelSpec) -> Result<()> {
        let ranks = call.ranks();
        let layout = Layout::new(spec, ranks.len());
        let remotes = ranks.iter().filter(|rank| !self.is_local(**rank)).count();
        let reserved = self.reserve(layout.bytes(remotes), layout.words())?;
        if let Some(arena) = self.channels.arena() {
            let start = arena.segment.pointer().wrapping_add(reserved.bytes.start as usize);
            let notices = (0..ranks.len()).map(|member| layout.received_notice(member));
            let firsts = [layout.arrival_slot(0), layout.arrival_slot(1), layout.notice()];
            for offset in firsts.into_iter().chain(notices) {
                // The number of a line or a notice is its first word.
                // SAFETY: inside of the range, aligned, and nobody else knows it yet.
                let number = unsafe { &*start.wrapping_add(offset as usize).cast::<AtomicU64>() };
                // Relaxed: published by the arrival.
                number.store(0, Ordering::Relaxed);
            }
        }
        let writers = closers(ranks, call.me(), &layout, &reserved);
        self.channels.begin_opening(group, reserved, writers);
        Ok(())
    }

    /// Whether all other members of this node may copy from and to this process.
    fn is_reachable(&self, ranks: &[Rank]) -> bool {
        let Some(arena) = self.channels.arena() else { return false };
        let others = ranks.iter().filter(|rank| self.is_local(**rank) && **rank != self.rank);
        others.into_iter().all(|rank| arena.segment.answer_of(*rank) == Some(1))
    }
}

/// The other members, and the words in which they say that they have closed a channel.
fn closers(ranks: &[Rank], me: usize, layout: &Layout, reserved: &Reserved) -> Vec<(Rank, u32)> {
    let word = |index: usize| reserved.words.start as u32 + layout.taken(index);
    let others = ranks.iter().enumerate().filter(|(index, _)| *index != me);
    others.map(|(index, rank)| (*rank, word(index))).collect()
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
        let (inner, deadline) = (self.shared(), timeout.deadline());
        let mut call = inner.group_call(group, spec.key())?;
        let troubles = inner.channels.troubles();
        inner.prepare_part(&mut call, group, spec, deadline)?;
        let failure = call.failure();
        let failed = failure.is_some();
        let report = call.report(failure.as_ref());
        call.arrive(&inner.offer(&call, group, report).words());
        let met = call.await_all(deadline);
        if let Err(error) = &met
            && error.is_timeout()
        {
            return Err(error.clone());
        }
        let anyone_failed =
            met.is_ok() && (0..call.ranks().len()).any(|m| has_failed(Offer::of(&call, m).report));
        let outcome = match (failure, met) {
            (Some(error), _) | (None, Err(error)) => Err(error),
            (None, Ok(())) => inner.connect_parts(&call, group, spec, troubles, deadline),
        };
        if let Err(error) = &outcome {
            // Who has seen all arrive alike, and none fail, has opened it.
            let differs = matches!(error, Error::Mismatch { .. });
            let others_may = !failed && !differs && !anyone_failed;
            inner.channels.fail_opening(group, others_may);
        }
        call.finish();
        outcome
    }
}

impl Inner {
    /// What a rank does before it arrives. Its failures are kept in the call, for all to hear.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    fn prepare_part(
        &self,
        call: &mut GroupCall<'_>,
        group: GroupId,
        spec: ChannelSpec,
        deadline: Deadline,
    ) -> Result<()> {
        if call.cursor() == RESERVING {
            match self.reserve_part(call, group, spec) {
                Ok(()) => call.set_cursor(REGISTERING),
                Err(error) => {
                    call.set_failure(error);
                    call.set_cursor(MEETING);
                }
            }
        }
        if call.cursor() == REGISTERING {
            if let Some(arena) = self.channels.arena() {
                let course = waiting_group(Call::Channel, group);
                match self.register_all(&arena.segment, &call.ranks_shared(), deadline, course) {
                    Err(error) if error.is_timeout() => return Err(error),
                    Err(error) => call.set_failure(error),
                    Ok(()) => {}
                }
            }
            call.set_cursor(MEETING);
        }
        Ok(())
    }

    fn offer(&self, call: &GroupCall<'_>, group: GroupId, report: Report) -> Offer {
        let reserved = self.channels.opening(group);
        let (base, words) =
            reserved.map_or((0, 0), |reserved| (reserved.bytes.start, reserved.words.start));
        let reachable = self.is_reachable(call.ranks());
        let shares_cores = !self.waiter.spins();
        Offer { report, base, words, reachable, shares_cores }
    }

    /// Puts a channel together from what all members have offered.
    fn connect_parts(
        self: &Arc<Inner>,
        call: &GroupCall<'_>,
        group: GroupId,
        spec: ChannelSpec,
        troubles: u64,
        deadline: Deadline,
    ) -> Result<Channel> {
        let ranks = call.ranks_shared();
        let offers: Vec<Offer> = (0..ranks.len()).map(|member| Offer::of(call, member)).collect();
        if let Some(failed) = offers.iter().position(|offer| has_failed(offer.report)) {
            let what = ("channel_open", waiting_group(Call::Channel, group));
            return Err(call.reported(failed, offers[failed].report, what, deadline));
        }
        let Some(arena) = self.channels.arena() else { return Err(Error::NotInitialised) };
        let mut nodes = Vec::new();
        let mut remotes = 0;
        let members: Result<Box<[Member]>> = ranks
            .iter()
            .zip(&offers)
            .map(|(rank, offer)| {
                let own = *rank == self.rank;
                let view = if own { None } else { Some(self.view_of(*rank)?) };
                let arena = view.as_ref().map_or(arena.segment.pointer(), |v| v.target.start(0));
                let start = self.is_local(*rank).then(|| arena.wrapping_add(offer.base as usize));
                let name = self.cards[rank.index()].node;
                let node = nodes.iter().position(|known| *known == name).unwrap_or_else(|| {
                    nodes.push(name);
                    nodes.len() - 1
                });
                let nth_remote = remotes;
                remotes += usize::from(start.is_none());
                Ok(Member {
                    rank: *rank,
                    node: node as u32,
                    start,
                    base: offer.base,
                    words: offer.words as u32,
                    view,
                    nth_remote,
                    received: AtomicU64::new(0),
                    taken: AtomicU64::new(0),
                    told: AtomicU64::new(0),
                    untold: AtomicU64::new(0),
                    losses: self.channels.losses(*rank),
                })
            })
            .collect();
        let members = members?;
        let reserved = self.channels.end_opening(group).ok_or(Error::NotInitialised)?;
        Ok(Channel {
            inner: Arc::clone(self),
            group,
            spec,
            layout: Layout::new(spec, ranks.len()),
            me: call.me(),
            members,
            segment: Arc::clone(&arena.segment),
            reserved,
            all_reachable: offers.iter().all(|offer| offer.reachable),
            shares_cores: ranks
                .iter()
                .zip(&offers)
                .any(|(rank, offer)| self.is_local(*rank) && offer.shares_cores),
            is_one_machine: ranks.iter().all(|rank| {
                self.cards[rank.index()].machine == self.cards[self.rank.index()].machine
            }),
            troubles,
            harmless: AtomicU64::new(troubles),
            recent: AtomicU64::new(0),
            notices: Mutex::new(0),
            ranks,
        })
    }

    /// The arena of a member that has just arrived.
    fn view_of(&self, rank: Rank) -> Result<Arc<super::arena::View>> {
        self.channels.view(rank).ok_or_else(|| {
            // It was there when the member arrived.
            match self.check_alive(rank, "channel_open") {
                Err(error) => error,
                Ok(()) => self.refused(rank, "its memory for channels is gone"),
            }
        })
    }
}
