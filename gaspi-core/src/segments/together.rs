//! Segments that the members of a group make together, and how each gets at those of the others.

use crate::control::reason::{has_failed, lacks_descriptors};
use crate::control::{CallKey, CallKind, GroupCall, describe_call};
use crate::diagnostics;
use crate::error::{Error, Result};
use crate::ids::{GroupId, Rank, SegmentId};
use crate::runtime::Inner;
use crate::segment::published::{PUBLISHED_WORDS, Published};
use crate::segment::{MAPPED_AT_ONCE, Segment, Target};
use crate::timeout::{Deadline, Timeout};
use crate::wait::{Call, waiting};

/// Stages of a segment made by a group.
const MAKING: u64 = 0;
const REGISTERING: u64 = 1;
const MEETING: u64 = 2;

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
        let deadline = timeout.deadline();
        let signature = kind.signature(segment.0.into());
        let key = CallKey { kind, arguments, signature, describe: describe_call };
        let mut call = self.group_call(group, key)?;
        if call.cursor() == MAKING {
            match make() {
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
            let registered = own.as_ref().ok_or_else(|| self.no_segment(segment)).and_then(|own| {
                let course = waiting(Call::MakeKnown, segment.0);
                let (ranks, others): (Vec<Rank>, Vec<Rank>) = self.to_be_told(own, call.ranks());
                let remote = others.into_iter().filter(|rank| !self.ranks.is_local(*rank));
                own.registered.lock().extend(remote);
                self.register_all(own, &ranks, deadline, course, |rank| call.lacks(rank))
            });
            match registered {
                Err(error) if error.is_timeout() => return Err(error),
                Err(error) => {
                    let what = (kind.name(), waiting(Call::Create, segment.0));
                    call.set_failure(self.cause(error, what, call.ranks(), deadline));
                }
                Ok(()) => {}
            }
            call.set_cursor(MEETING);
        }
        let Some(error) = self.meet(call, kind, segment, deadline)? else { return Ok(()) };
        if let Some(own) = own {
            self.end(&own)?;
        }
        Err(error)
    }

    /// Tells the members how this rank's part went, and hears how theirs did: the error that the
    /// call ends with, if it does.
    ///
    /// # Errors
    /// [`Error::Timeout`]: the call is continued by the next.
    fn meet(
        &self,
        mut call: GroupCall<'_>,
        kind: CallKind,
        segment: SegmentId,
        deadline: Deadline,
    ) -> Result<Option<Error>> {
        let failure = call.failure();
        let [status, details] = call.report(failure.as_ref());
        let own = self.memory.segments.get_arc(segment);
        let published = own.map(|own| own.publish(self.memory.nonce));
        let [w0, w1, w2, w3] = published.map_or([0; PUBLISHED_WORDS], |it| it.words());
        call.arrive(&[status, details, w0, w1, w2, w3]);
        let met = call.await_all(deadline);
        if met.as_ref().is_err_and(Error::is_timeout) {
            return met.map(|()| None);
        }
        let told = |member| {
            let [status, details, ..] = call.payload(member, call.step());
            [status, details]
        };
        let members = || (0..call.ranks().len()).filter(|_| met.is_ok());
        // Who lacks descriptors is the reason why others failed with it.
        let lacking = members().find(|member| lacks_descriptors(told(*member)));
        let failure =
            failure.filter(|own| lacking.is_none() || !matches!(own, Error::Refused { .. }));
        let failed = lacking.or_else(|| members().find(|member| has_failed(told(*member))));
        let failed = failed.filter(|_| failure.is_none()).map(|member| {
            let what = (kind.name(), waiting(Call::Create, segment.0));
            call.reported(member, told(member), what, deadline)
        });
        let failure = failure.or(met.err()).or(failed);
        if failure.is_none() {
            self.learn_of_all(&call, segment);
        }
        call.finish();
        Ok(failure)
    }

    /// Learns of the members' segments by what their arrivals publish, unless they have registered
    /// them already.
    fn learn_of_all(&self, call: &GroupCall<'_>, segment: SegmentId) {
        let maps_later = self.ranks.area.locals().len() > MAPPED_AT_ONCE;
        for (member, rank) in call.ranks().iter().enumerate() {
            let is_local = self.ranks.is_local(*rank);
            if *rank == self.ranks.me || is_local && !maps_later {
                continue;
            }
            let [_, _, published @ ..] = call.payload(member, call.step());
            let Some(published) = Published::from_words(published) else { continue };
            if !is_local {
                self.learn_of_remote(*rank, segment, &published);
            } else if published.is_open() {
                self.ranks.learn_published(*rank, segment, published);
            }
        }
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
    /// what arrivals publish: those of other nodes unless they need keys of this rank's device, and
    /// those of a node of many ranks.
    fn to_be_told(&self, segment: &Segment, members: &[Rank]) -> (Vec<Rank>, Vec<Rank>) {
        let of_node = members.iter().filter(|rank| self.ranks.is_local(**rank)).count();
        let published = of_node > MAPPED_AT_ONCE && segment.is_mapped();
        let has_device = self.endpoints.verbs(self).is_some();
        let others = members.iter().copied().filter(|rank| *rank != self.ranks.me);
        others.partition(|rank| {
            if self.ranks.is_local(*rank) {
                !published || !self.ranks.area.may_open_descriptors(*rank)
            } else {
                has_device
            }
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
