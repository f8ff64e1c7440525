//! Segments that the members of a group make together, and how each gets at those of the others.

use crate::callback::may_wait;
use crate::control::reason::{has_failed, lacks_descriptors};
use crate::control::{CallKey, CallKind, GroupCall, describe_call};
use crate::diagnostics;
use crate::error::{Error, Result};
use crate::ids::{GroupId, Rank, SegmentId};
use crate::runtime::Inner;
use crate::segment::published::{PUBLISHED_WORDS, Published, key_of_words, words_of_key};
use crate::segment::{MAPPED_AT_ONCE, Segment, Target};
use crate::sync::arrival_slot::PAYLOAD_WORDS;
use crate::timeout::{Deadline, Timeout};
use crate::wait::{Call, waiting};
use std::sync::Arc;

/// Stages of a segment made by a group.
const MAKING: u64 = 0;
const REGISTERING: u64 = 1;
const MEETING: u64 = 2;
const TELLING_KEYS: u64 = 3;

impl Inner {
    /// The collective part of create and use: `make` the segment, register it with the group, meet.
    pub(super) fn make_together(
        &self,
        kind: CallKind,
        segment: SegmentId,
        arguments: u64,
        group: GroupId,
        timeout: Timeout,
        make: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        may_wait(timeout, Call::Create.name())?;
        let deadline = timeout.deadline();
        let signature = kind.signature(segment.0.into());
        let key = CallKey { kind, arguments, signature, describe: describe_call };
        let mut call = self.group_call(group, key)?;
        if call.cursor() == MAKING {
            match make().and_then(|()| self.export_to(call.ranks(), segment)) {
                Ok(()) => call.set_cursor(REGISTERING),
                // Memory and descriptors are the others' concern too.
                Err(
                    error @ (Error::Memory { .. }
                    | Error::System { .. }
                    | Error::TooManyFiles { .. }),
                ) => {
                    call.set_failure(error);
                    call.set_cursor(MEETING);
                }
                // Wrong arguments are this rank's own affair, as they are in the local procedures.
                Err(error) => {
                    call.finish();
                    return Err(error);
                }
            }
        }
        let own = self.memory.segments.get_arc(segment);
        if call.cursor() == REGISTERING {
            let own = own.as_ref().ok_or_else(|| self.no_segment(segment));
            match own.and_then(|own| self.register_together(&call, own, deadline)) {
                Err(error) if error.is_timeout() => return Err(error),
                Err(error) => {
                    let what = (kind.name(), waiting(Call::Create, segment.0));
                    call.set_failure(self.cause(error, what, call.ranks(), deadline));
                }
                Ok(()) => {}
            }
            call.set_cursor(MEETING);
        }
        if call.cursor() == MEETING {
            let met = self.meet(&mut call, kind, segment, deadline);
            if met.as_ref().is_err_and(Error::is_timeout) {
                return met.map(|_| ());
            }
            match met {
                Ok(told) if self.learn_of_all(&call, segment, &told) => {
                    call.set_cursor(TELLING_KEYS);
                }
                met => {
                    call.finish();
                    return met
                        .map_or_else(|error| self.end_together(own.as_ref(), error), |_| Ok(()));
                }
            }
        }
        let outcome = self.tell_keys(&mut call, segment, deadline);
        if outcome.as_ref().is_err_and(Error::is_timeout) {
            return outcome;
        }
        call.finish();
        outcome.or_else(|error| self.end_together(own.as_ref(), error))
    }

    /// Registers a segment with the members that do not hear of it by what arrivals publish.
    fn register_together(
        &self,
        call: &GroupCall<'_>,
        own: &Arc<Segment>,
        deadline: Deadline,
    ) -> Result<()> {
        let course = waiting(Call::MakeKnown, own.id.0);
        let (ranks, others): (Vec<Rank>, Vec<Rank>) = self.to_be_told(own, call.ranks());
        let remote = others.into_iter().filter(|rank| !self.ranks.is_local(*rank));
        own.registered.lock().extend(remote);
        self.register_all(own, &ranks, deadline, course, |rank| call.lacks(rank))
    }

    /// Ends a segment that the members could not make together, for this reason.
    fn end_together(&self, own: Option<&Arc<Segment>>, error: Error) -> Result<()> {
        own.map_or(Ok(()), |own| self.end(own))?;
        Err(error)
    }

    /// Has this rank's device know a segment, where `members` are of other nodes.
    ///
    /// # Errors
    /// It does not take the memory, and nothing else may carry data.
    fn export_to(&self, members: &[Rank], segment: SegmentId) -> Result<()> {
        let Some(own) = self.memory.segments.get_arc(segment) else { return Ok(()) };
        if members.iter().any(|rank| !self.ranks.is_local(*rank)) {
            self.endpoints.export(&own)?;
        }
        Ok(())
    }

    /// Tells the members how this rank's part went, and hears how theirs did, and what each tells.
    ///
    /// # Errors
    /// [`Error::Timeout`]: the call is continued by the next. Any other ends it.
    fn meet(
        &self,
        call: &mut GroupCall<'_>,
        kind: CallKind,
        segment: SegmentId,
        deadline: Deadline,
    ) -> Result<Vec<[u64; PAYLOAD_WORDS]>> {
        let failure = call.failure();
        let [status, details] = call.report(failure.as_ref());
        let own = self.memory.segments.get_arc(segment);
        let spans = call.ranks().iter().any(|rank| !self.ranks.is_local(*rank));
        let published =
            own.map(|own| own.publish(self.memory.nonce, spans && own.prepared.is_known()));
        let [w0, w1, w2, w3] = published.map_or([0; PUBLISHED_WORDS], |it| it.words());
        call.arrive(&[status, details, w0, w1, w2, w3]);
        let met = call.await_all(deadline).and_then(|()| call.payloads());
        if met.as_ref().is_err_and(Error::is_timeout) {
            return met;
        }
        let all = met.as_deref().unwrap_or_default();
        let report = |[status, details, ..]: &[u64; PAYLOAD_WORDS]| [*status, *details];
        // Who lacks descriptors is the reason why others failed with it.
        let lacking = all.iter().position(|told| lacks_descriptors(report(told)));
        let failure =
            failure.filter(|own| lacking.is_none() || !matches!(own, Error::Refused { .. }));
        if let Some(failure) = failure {
            return Err(failure);
        }
        match lacking.or_else(|| all.iter().position(|told| has_failed(report(told)))) {
            None => met,
            Some(member) => {
                let what = (kind.name(), waiting(Call::Create, segment.0));
                Err(call.reported(member, report(&all[member]), what, deadline))
            }
        }
    }

    /// Tells the members of other nodes the key of this rank's device, and learns theirs: a step
    /// that all take where some have such keys.
    ///
    /// # Errors
    /// [`Error::Timeout`]: the call is continued by the next. A member has ended.
    fn tell_keys(
        &self,
        call: &mut GroupCall<'_>,
        segment: SegmentId,
        deadline: Deadline,
    ) -> Result<()> {
        call.set_number(1);
        let own = self.memory.segments.get_arc(segment);
        let generation = own.as_ref().map_or(0, |own| own.generation);
        let [key, address] = words_of_key(own.and_then(|own| own.prepared.key()));
        // In the place of the details, which only failures have.
        let [status, _] = call.report(None);
        call.arrive(&[status, generation.into(), key, address]);
        call.await_all(deadline)?;
        let told = call.payloads()?;
        for (rank, told) in call.ranks().iter().zip(told) {
            let [_, generation, key, address, ..] = told;
            let key = key_of_words([key, address]).filter(|_| !self.ranks.is_local(*rank));
            if let Some(key) = key.and_then(|key| self.endpoints.usable_key(&[key])) {
                self.ranks.learn_key(*rank, segment, generation as u32, key);
            }
        }
        Ok(())
    }

    /// Learns of the members' segments by what their arrivals have told, unless they have
    /// registered them already. Whether keys of some follow.
    fn learn_of_all(
        &self,
        call: &GroupCall<'_>,
        segment: SegmentId,
        told: &[[u64; PAYLOAD_WORDS]],
    ) -> bool {
        let mut keys_follow = false;
        let maps_later = self.ranks.area.locals().len() > MAPPED_AT_ONCE;
        for (rank, [_, _, published @ ..]) in call.ranks().iter().zip(told.iter().copied()) {
            let is_local = self.ranks.is_local(*rank);
            let Some(published) = Published::from_words(published) else { continue };
            keys_follow |= published.key_follows;
            if *rank == self.ranks.me || is_local && !maps_later {
                continue;
            }
            if !is_local {
                self.learn_of_remote(*rank, segment, &published);
            } else if published.is_open() {
                self.ranks.learn_published(*rank, segment, published);
            }
        }
        keys_follow
    }

    fn learn_of_remote(&self, rank: Rank, segment: SegmentId, published: &Published) {
        let Published { generation, size, .. } = *published;
        if self.ranks.target_generation(rank, segment) == Some(generation) {
            return;
        }
        log::debug!("{segment} of {rank} has {}", diagnostics::bytes(size));
        // If it has died, whatever needs the segment says so.
        let _ = self.ranks.learn_target(rank, segment, Target::remote((size, generation), None));
    }

    /// The members that hear of a new segment by a message each, and the others, which find it by
    /// what arrivals publish: those of other nodes, and those of a node of many ranks.
    fn to_be_told(&self, segment: &Segment, members: &[Rank]) -> (Vec<Rank>, Vec<Rank>) {
        let of_node = members.iter().filter(|rank| self.ranks.is_local(**rank)).count();
        let published = of_node > MAPPED_AT_ONCE && segment.is_mapped();
        let others = members.iter().copied().filter(|rank| *rank != self.ranks.me);
        others.partition(|rank| {
            let opens = published && self.ranks.area.may_open_descriptors(*rank);
            self.ranks.is_local(*rank) && !opens
        })
    }

    /// Maps a segment of `rank` that was published. One that is not there any more is forgotten.
    ///
    /// # Errors
    /// It cannot be opened or mapped.
    #[cold]
    pub(crate) fn map_published(
        &self,
        rank: Rank,
        segment: SegmentId,
        published: &Published,
    ) -> Result<()> {
        if !self.try_to_map(rank, segment, published)? {
            // It was deleted, or its owner's process has ended.
            self.ranks.may_have_ended(rank);
            self.ranks.forget_target(rank, segment, Some(published.generation));
        }
        Ok(())
    }

    /// The same, without waiting to hear whether the owner has ended: whether it is there.
    ///
    /// # Errors
    /// As above.
    #[cold]
    pub(crate) fn try_to_map(
        &self,
        rank: Rank,
        segment: SegmentId,
        published: &Published,
    ) -> Result<bool> {
        let pid = self.ranks.cards.at(rank).pid();
        let Some(target) = published.map(segment, pid, self.memory.shape, self.ranks.me)? else {
            return Ok(false);
        };
        let bytes = diagnostics::bytes(published.size);
        log::debug!("{segment} of {rank} has {bytes} and is mapped at first access");
        self.ranks.learn_mapped(rank, segment, target);
        Ok(true)
    }
}
