//! Memory that the device knows, of segments: prepared before its first use, and released behind
//! the last.

use super::device::Registration;
use super::ended::Ended;
use super::lane::{Begun, Lane};
use super::work::{Local, Remote};
use super::{DeviceTable, GONE, Verbs};
use crate::error::Result;
use crate::ids::{QueueId, Rank};
use crate::segment::prepared::{Prepared, Registration as Registered};
use crate::segment::{Reach, Segment, Target};
use crate::sync::epoch;
use crate::wire::message::{MemoryKey, RemoteAddress};
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a delete waits for this rank's own requests on the memory, and a purge for those of its
/// queue.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

impl DeviceTable {
    /// Makes a segment known to the device; the key that peers need.
    ///
    /// # Errors
    /// In words, why the device does not take it.
    pub(crate) fn prepare(&self, segment: &Segment) -> std::result::Result<MemoryKey, String> {
        let (start, bytes) = (segment.pointer(), segment.whole_pages());
        let register = || self.device.register(start, bytes);
        segment.prepared.prepare(|| Ok(prepared(register()?, start, |own| Box::new(own))))
    }

    /// Makes a part of a segment known to the device, which keeps the segment as long; nothing if
    /// it does not carry messages.
    ///
    /// # Errors
    /// In words, why the device does not take it.
    pub(crate) fn register_part(
        &self,
        segment: &Arc<Segment>,
        bytes: Range<u64>,
    ) -> std::result::Result<Option<Prepared>, String> {
        if !self.device.carries_messages() {
            return Ok(None);
        }
        let start = segment.pointer().wrapping_add(bytes.start as usize);
        let registration = self.device.register(start, bytes.end - bytes.start)?;
        // In this order: the device lets go of the memory before it can go.
        let keep = |own| -> Registered { Box::new((own, Arc::clone(segment))) };
        Ok(Some(prepared(registration, start, keep)))
    }

    /// Makes memory known to the device for requests of this rank that only read it.
    ///
    /// # Errors
    /// In words, why the device does not take it.
    pub(crate) fn register_source(
        &self,
        start: *const u8,
        len: u64,
    ) -> std::result::Result<Prepared, String> {
        let registration = self.device.register_source(start, len)?;
        Ok(prepared(registration, start, |own| Box::new(own)))
    }

    /// Whether the device can take data from this segment or put it there. Where it cannot, the log
    /// says so once.
    pub(crate) fn can_use(&self, segment: &Segment) -> bool {
        if segment.prepared.local_key().is_some() {
            return true;
        }
        let is_first = segment.prepared.is_untried();
        let outcome = self.prepare(segment);
        if let Err(reason) = outcome.as_ref()
            && is_first
            && !self.forced
        {
            log::warn!("requests with memory of {} go by TCP: {reason}", segment.id);
        }
        outcome.is_ok()
    }

    /// Where memory of this rank lies, for the device: what it does not know can only go along.
    pub(super) fn local(segment: &Segment, offset: u64) -> Local {
        Local { address: segment.pointer() as u64 + offset, key: segment.prepared.local_key() }
    }
}

/// Memory that begins at `start`, as the device knows it; `keep` says what is kept with it.
fn prepared(
    registration: Registration,
    start: *const u8,
    keep: impl FnOnce(Registration) -> Registered,
) -> Prepared {
    let key = MemoryKey { device: 0, key: registration.remote_key(), address: start as u64 };
    let local_key = registration.local_key();
    Prepared { local_key, key, registration: keep(registration) }
}

/// Requests of a lane up to some time; only those of a queue `of` which there are any left, if it
/// names one.
struct UnderWay<'a> {
    lane: &'a Lane,
    begun: Begun,
    of: Option<QueueId>,
}

impl UnderWay<'_> {
    /// Whether the device may still use memory of them.
    fn uses(&self) -> bool {
        let mut state = self.lane.lock();
        // Where this fails the completion tells.
        let _ = state.signal();
        state.has_before(self.begun) && self.of.is_none_or(|queue| state.has_of(queue))
    }
}

impl<'a> Verbs<'a> {
    /// Takes a segment, which has ended, from the device, once no request of this rank uses it.
    /// Where that takes too long, their pairs are taken down.
    pub(crate) fn release(self, segment: &Segment) {
        if !segment.prepared.is_known() {
            return;
        }
        self.end_requests(None, &format!("{} was deleted while it was used", segment.id));
        segment.prepared.release();
        // What has come of writes to it is not to notify of one that has its number next.
        self.catch_up();
    }

    /// Requests of a queue are forgotten: what they would still write here arrives before this
    /// returns, or never. The next one may have a pair that could not be made for them.
    pub(crate) fn purge(self, queue: QueueId) {
        for lane in self.table.used(Some(queue)) {
            let (mut ended, mut state) = (Ended::default(), lane.lock());
            if let Some(run) = state.take_run() {
                state.end_run(run.stream(queue), run, &mut ended);
            }
            drop(state);
            ended.tell(self.up, lane.peer);
        }
        self.end_requests(Some(queue), &format!("{queue} was purged"));
        self.table.used(Some(queue)).for_each(|lane| lane.lock().pairing.forget_refusal());
    }

    /// Waits until all requests so far have ended, of one queue or of all. Where that takes too
    /// long, their pairs are taken down.
    fn end_requests(self, queue: Option<QueueId>, reason: &str) {
        let begin = Instant::now();
        loop {
            let moves = self.moves(queue);
            let before = self.under_way(queue);
            while let Some(used) = before.iter().find(|used| used.uses()) {
                if begin.elapsed() > RELEASE_LIMIT {
                    self.give_up(used, reason);
                }
                self.poll();
                std::thread::yield_now();
            }
            // What moved to another lane meanwhile was counted in neither.
            if self.moves(queue) == moves {
                break;
            }
        }
    }

    /// How often requests have moved between lanes, of one queue or of all.
    fn moves(self, queue: Option<QueueId>) -> u64 {
        self.table.used(queue).map(|lane| lane.route.lock().moves).sum()
    }

    /// What is under way now, of one queue or of all.
    fn under_way(self, queue: Option<QueueId>) -> Vec<UnderWay<'a>> {
        let mut found = Vec::new();
        for lane in self.table.used(queue) {
            let route = lane.route.lock();
            found.push(UnderWay { lane, begun: lane.lock().begun(), of: None });
            let via = self.via(lane, &route);
            if !ptr::eq(lane, via) {
                found.push(UnderWay { lane: via, begun: via.lock().begun(), of: Some(lane.queue) });
            }
        }
        found
    }

    /// Takes down the pair that requests have been under way on for too long.
    fn give_up(self, used: &UnderWay<'_>, reason: &str) {
        let lane = used.lane;
        self.fail(lane.lock(), reason);
        self.poll();
        // What waits for the peer's word of an earlier end.
        let (mut ended, mut state) = (Ended::default(), lane.lock());
        match used.of {
            _ if state.pair.is_some() => {}
            Some(queue) => {
                state.lose_waiting_of(queue, &mut ended);
                self.table.note_waiting(&state, lane.peer);
            }
            None => state.lose_all(lane.queue, &mut ended),
        }
        ended.mark(self.up, lane.peer);
        drop(state);
        ended.tell(self.up, lane.peer);
    }

    /// Where a place of the peer's lies, for its device; `None` if that does not know it.
    ///
    /// # Errors
    /// The segment is no more.
    pub(super) fn remote(self, peer: Rank, place: RemoteAddress) -> Result<Option<Remote>> {
        let inside = epoch::enter();
        let target = self.up.ranks().target(peer, place.segment, &inside);
        let same = |target: &&Target| target.generation == place.generation && target.alive();
        let target = target.filter(same).ok_or_else(|| self.refused(peer, GONE))?;
        Ok(match target.reach {
            Reach::Device { key, address } => Some(Remote { address: address + place.offset, key }),
            _ => None,
        })
    }
}
