//! The procedures of segments (GASPI 17.1, 7), and their memory for Rust programs.

mod together;

use crate::callback::may_wait;
use crate::calls::Patience;
use crate::control::CallKind;
use crate::diagnostics;
use crate::error::{Error, Result};
use crate::ids::{GroupId, Rank, SegmentId};
use crate::os::memory::{check_available, is_mapped};
use crate::runtime::{Inner, Runtime};
use crate::segment::{ARENA, Init, Segment, Target};
use crate::statistics::Counter;
use crate::sync::MutexGuard;
use crate::sync::{epoch, membarrier};
use crate::timeout::{Deadline, Timeout};
use crate::transport::requests::{PendingCall, RequestKey};
use crate::transport::shm::area::liveness;
use crate::wait::waiting;
use crate::wait::{Call, Waiting};
use crate::wire::message::{Message, Register, RemoteCall};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// How long a delete waits for peers that are copying from or to bound memory.
const COPY_LIMIT: Duration = Duration::from_secs(10);
/// How long members with lower numbers are left to connect to this rank.
const CONNECTING: Duration = Duration::from_millis(500);

impl Inner {
    fn segment_changes(&self) -> MutexGuard<'_, ()> {
        self.memory.segment_changes.lock()
    }

    /// Makes a segment known to this rank itself.
    fn insert(&self, segment: Segment) {
        let segment = Arc::new(segment);
        let target = Arc::new(Target::own(Arc::clone(&segment)));
        self.ranks.targets_of(self.ranks.me).replace(segment.id, Some(target));
        let id = segment.id;
        self.memory.segments.replace(id, Some(segment));
        self.memory.note_presence(id, true);
    }

    fn check_free(&self, segment: SegmentId) -> Result<()> {
        self.check_open()?;
        let limit = self.config.segment_max;
        if u32::from(segment.0) >= limit {
            let reason = format!("ids are below {limit} (segment_max)");
            return Err(Error::InvalidSegment { segment, reason });
        }
        if self.memory.segments.get_arc(segment).is_some() {
            let reason = "it exists already; delete it first".to_owned();
            return Err(Error::InvalidSegment { segment, reason });
        }
        if self.memory.segments.ids().count() >= limit as usize {
            return Err(Error::TooManySegments { limit });
        }
        Ok(())
    }

    fn check_size(size: u64) -> Result<()> {
        if size == 0 {
            return Err(Error::SegmentSize {
                size,
                reason: "it must be greater than 0".to_owned(),
            });
        }
        if size > i64::MAX as u64 {
            let reason = "it is larger than any address space".to_owned();
            return Err(Error::SegmentSize { size, reason });
        }
        Ok(())
    }

    fn alloc(&self, segment: SegmentId, size: u64, init: Init) -> Result<()> {
        let _changes = self.segment_changes();
        self.check_free(segment)?;
        Self::check_size(size)?;
        // What no machine has is refused before others count it.
        check_available(size, 0)?;
        // Ranks often allocate at the same time: each counts what the others are about to touch.
        let claim = (init == Init::Zeroed).then(|| self.ranks.area.claim(size));
        check_available(size, self.ranks.area.claimed_by_others())?;
        let made = Segment::new(segment, self.memory.generation(), size, init, self.memory.shape)?;
        log::debug!(
            "segment_alloc: {segment} has {} in {}",
            diagnostics::bytes(size),
            made.pages()
        );
        self.insert(made);
        drop(claim);
        Ok(())
    }

    fn bind(&self, segment: SegmentId, pointer: *mut u8, size: u64) -> Result<()> {
        let _changes = self.segment_changes();
        self.check_free(segment)?;
        Self::check_size(size)?;
        if !is_mapped(pointer, size) {
            let reason = format!("not all of that is memory of the program, from {pointer:p} on");
            return Err(Error::SegmentSize { size, reason });
        }
        self.insert(Segment::bound(
            segment,
            self.memory.generation(),
            pointer,
            size,
            self.memory.shape,
        )?);
        log::debug!("segment_bind: {segment} is {} of the program's", diagnostics::bytes(size));
        Ok(())
    }

    /// Ends a segment for everybody, if it is still this one. The caller holds `segment_changes`.
    fn end_locked(&self, segment: &Segment) {
        let id = segment.id;
        let known = self.memory.segments.get_arc(id);
        if known.is_none_or(|known| known.generation != segment.generation) {
            return;
        }
        self.memory.segments.replace(id, None);
        self.ranks.targets_of(self.ranks.me).replace(id, None);
        self.memory.note_presence(id, false);
        self.announce_end(segment);
    }

    /// Tells all who know a segment that it does not exist any more.
    fn announce_end(&self, segment: &Segment) {
        let id = segment.id;
        segment.end();
        log::debug!("segment_delete: {id} has ended");
        self.endpoints.requests.forget_registrations(id, segment.generation);
        let revoke = Message::Revoke { segment: id, generation: segment.generation };
        let registered = segment.registered.lock();
        let others = |rank: &&Rank| **rank != self.ranks.me && !registered.contains(rank);
        let locals = self.ranks.area.locals().iter().filter(others);
        // Of an arena that nobody was told of by a message nobody has to be: whoever uses it asks
        // whether this rank lives.
        let mapped = locals.filter(|rank| id != ARENA && segment.is_mapped_by(**rank));
        for rank in registered.iter().chain(mapped) {
            // Who has no connection has nothing under way. It may not have heard of the end when it
            // connects: this rank then refuses what it asks for.
            if self.ranks.liveness(*rank) == liveness::JOINED && self.is_reached(*rank) {
                // Whoever cannot be told any more does not use it any more.
                let _ = self.send_message(*rank, &revoke, Deadline::Now);
            }
        }
        drop(registered);
        // Threads of this rank may wait for something in it.
        self.ranks.wake_own();
    }

    /// Waits until no peer copies from or to the memory of ended segments any more.
    fn await_copies(&self, ended: &[Arc<Segment>]) -> Result<()> {
        membarrier::heavy_global();
        let copied_by = || {
            let alive = |rank: &Rank| {
                *rank != self.ranks.me && self.ranks.liveness(*rank) == liveness::JOINED
            };
            ended.iter().find_map(|segment| {
                // Others do not map the words that tell of copies.
                let ranks = self.ranks.area.locals().iter().copied().filter(alive);
                Some((segment.id, segment.copied_by(ranks)?))
            })
        };
        let deadline = Deadline::Never.at_most(COPY_LIMIT);
        while let Some((segment, rank)) = copied_by() {
            if deadline.passed() {
                let reason =
                    format!("it has been copying from or to {segment} for 10 s; is it stopped?");
                return Err(self.ranks.refused(rank, reason));
            }
            // Copies end by themselves within microseconds; their end is not announced.
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Ends a segment and waits until its memory is no longer used.
    fn end(&self, segment: &Arc<Segment>) -> Result<()> {
        let _ends = self.memory.segment_ends.lock();
        {
            let _changes = self.segment_changes();
            self.end_locked(segment);
            // Before the id is free: what came for it by a device is not for its next segment.
            self.take_from_device(segment);
        }
        // This may take long, where a peer is stopped. Segments of all ids can be made meanwhile.
        self.await_copies(std::slice::from_ref(segment))
    }

    /// A device knows the memory of a segment no more, which has ended.
    fn take_from_device(&self, segment: &Segment) {
        if let Some(verbs) = self.endpoints.verbs(self) {
            verbs.release(segment);
        }
    }

    /// Ends all segments of this rank, for good.
    pub(crate) fn end_all_segments(&self) {
        let _ends = self.memory.segment_ends.lock();
        let _changes = self.segment_changes();
        let all: Vec<Arc<Segment>> =
            self.memory.segments.ids().filter_map(|id| self.memory.segments.get_arc(id)).collect();
        for segment in &all {
            self.end_locked(segment);
        }
        if let Some(arena) = self.channels.arena() {
            self.announce_end(&arena.segment);
        }
        if let Err(error) = self.await_copies(&all) {
            log::error!("proc_term: {error}; its memory must not be freed yet");
        }
        all.iter().for_each(|segment| self.take_from_device(segment));
    }

    /// A peer has deleted a segment: later accesses fail.
    pub(crate) fn revoked(&self, peer: Rank, segment: SegmentId, generation: u32) {
        if segment == ARENA {
            return self.channels.forget(peer, Some(generation));
        }
        self.ranks.forget_target(peer, segment, Some(generation));
    }

    /// A peer describes a segment to this rank; says whether it can be reached.
    ///
    /// # Errors
    /// In words, for the peer.
    pub(crate) fn import_segment(
        &self,
        peer: Rank,
        register: &Register,
        descriptors: &[OwnedFd],
    ) -> Result<u64, String> {
        if register.segment == ARENA {
            return self.import_arena(peer, register, descriptors);
        }
        if u32::from(register.segment.0) >= self.config.segment_max {
            return Err(format!("{} is out of range", register.segment));
        }
        if self.ranks.target_generation(peer, register.segment) == Some(register.generation) {
            return Ok(0);
        }
        let target = if self.endpoint(peer).capabilities().maps_memory {
            let pid = self.ranks.cards.at(peer).pid();
            Target::import(register, pid, descriptors, self.memory.shape)
                .map_err(|error| error.to_string())?
        } else {
            let key = self.endpoints.usable_key(&register.keys);
            Target::remote((register.size, register.generation), key)
        };
        log::debug!(
            "segment_register: {} of {peer} has {} and is {}",
            register.segment,
            diagnostics::bytes(register.size),
            target.reach.in_words()
        );
        self.ranks.learn_target(peer, register.segment, target).map(|()| 0)
    }

    /// Tells `rank` about a segment; the answer is to come.
    fn start_register(
        &self,
        segment: &Arc<Segment>,
        rank: Rank,
        deadline: Deadline,
    ) -> Result<(RequestKey, Arc<PendingCall>)> {
        let (id, generation) = (segment.id, segment.generation);
        let key = RequestKey::Register { segment: id, generation, rank };
        segment.registered.lock().insert(rank);
        let (mut register, mut files) = segment.describe(&self.memory.nonce);
        if !self.endpoint(rank).capabilities().descriptors {
            files.clear();
        }
        // Of an arena, which is sparse, each channel registers its own range.
        if !self.ranks.is_local(rank) && id != ARENA {
            register.keys = self.endpoints.export(segment)?;
        }
        let call = self.call(key, rank, deadline, RemoteCall::Register(register), &files)?;
        Ok((key, call))
    }

    fn register(&self, segment: SegmentId, rank: Rank, deadline: Deadline) -> Result<()> {
        let found = self.memory.segments.get_arc(segment);
        let found = found.ok_or_else(|| self.no_segment(segment))?;
        self.ranks.check_rank(rank)?;
        if rank == self.ranks.me {
            return Ok(());
        }
        self.ranks.check_alive(rank, "segment_register")?;
        let (key, call) = self.start_register(&found, rank, deadline)?;
        let waiting = waiting(Call::Register, segment.0);
        let answer = self.finish_call(key, rank, call, deadline, waiting);
        answer.map(|answer| found.note_answered(rank, answer)).inspect_err(|error| {
            if !error.is_timeout() {
                self.ranks.set_corrupt(rank);
            }
        })
    }

    /// Whether nothing has to be made for a message to `rank`.
    pub(crate) fn is_reached(&self, rank: Rank) -> bool {
        let stream = &self.endpoints.stream;
        !stream.remote
            || self.ranks.is_local(rank)
            || stream.connections.is_established(rank)
            || self.ranks.liveness(rank) != liveness::JOINED
    }

    /// Registers with every member, all at once, in the course of a call. One that says meanwhile
    /// that it `lacks` descriptors is waited for no longer: it takes no connection.
    pub(crate) fn register_all(
        &self,
        segment: &Arc<Segment>,
        ranks: &[Rank],
        deadline: Deadline,
        course: Waiting,
        lacks: impl Fn(Rank) -> bool,
    ) -> Result<()> {
        let mut calls = Vec::with_capacity(ranks.len());
        let others = ranks.iter().copied().filter(|rank| *rank != self.ranks.me);
        let others = others.filter(|rank| segment.answer_of(*rank).is_none());
        let connects = |rank: &Rank| *rank > self.ranks.me || self.is_reached(*rank);
        let (first, second): (Vec<Rank>, Vec<Rank>) = others.partition(connects);
        for (ranks, waits) in [(first, false), (second, true)] {
            if waits {
                // They register too: most of them connect to this rank, which need not do so.
                let limit = deadline.at_most(CONNECTING);
                let all = || ranks.iter().all(|rank| self.is_reached(*rank)).then_some(());
                let _ = self.until(limit, course, all);
            }
            for rank in ranks {
                self.ranks.check_alive(rank, course.call.name())?;
                // It may die in between: the error then speaks of the call, not of the connection.
                let started = self.start_register(segment, rank, deadline);
                let (key, call) =
                    started.map_err(|error| error.with_pending(course.call.name()))?;
                calls.push((key, rank, call));
            }
        }
        let mut result = Ok(());
        let patience = Patience::default();
        for (key, rank, call) in calls {
            let ends = || {
                let has_left = self.check_open().is_err();
                call.outcome().is_some() || has_left || self.ranks.check_alive(rank, "").is_err()
            };
            let ended = self.until(deadline, course, || (ends() || lacks(rank)).then(|| !ends()));
            if ended == Some(true) {
                let reason = "it has too many open files".to_owned();
                result = result.and(Err(self.ranks.refused(rank, reason)));
                continue;
            }
            // Every call is finished or kept for the continuation, also after an error.
            match self.finish_one_of(key, rank, call, deadline, course, &patience) {
                Ok(answer) => segment.note_answered(rank, answer),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }
}

impl Runtime {
    /// Allocates a segment of `size` bytes of shared memory (GASPI 17.1, 7.2.1). Local.
    ///
    /// # Errors
    /// [`Error::SegmentSize`], [`Error::InvalidSegment`] if the id is in use or out of range,
    /// [`Error::TooManySegments`], [`Error::Memory`].
    pub fn segment_alloc(&self, segment: SegmentId, size: u64, init: Init) -> Result<()> {
        self.inner().alloc(segment, size, init)?;
        self.inner().count(Counter::SegmentAlloc, 1);
        Ok(())
    }

    /// Deletes a segment of this rank. Local; accesses of others that come later fail.
    ///
    /// # Errors
    /// [`Error::InvalidSegment`]; [`Error::Refused`] if a peer does not finish copying from or to
    /// bound memory within 10 s: the memory must then not be freed.
    pub fn segment_delete(&self, segment: SegmentId) -> Result<()> {
        let inner = self.inner();
        inner.check_open()?;
        let found = inner.memory.segments.get_arc(segment);
        let found = found.ok_or_else(|| inner.no_segment(segment))?;
        inner.count(Counter::SegmentDelete, 1);
        inner.end(&found)
    }

    /// Makes a segment of this rank accessible to `rank` (GASPI 17.1, 7.2.2).
    ///
    /// # Errors
    /// [`Error::InvalidSegment`], [`Error::InvalidRank`], [`Error::Timeout`], [`Error::RankDied`],
    /// [`Error::RankLeft`], [`Error::Refused`] if `rank` cannot map it.
    pub fn segment_register(&self, segment: SegmentId, rank: Rank, timeout: Timeout) -> Result<()> {
        may_wait(timeout, Call::Register.name())?;
        self.inner().register(segment, rank, timeout.deadline())?;
        self.inner().count(Counter::SegmentRegister, 1);
        Ok(())
    }

    /// Allocates a segment, registers it with all ranks of `group`, and waits for them to do the
    /// same (GASPI 17.1, 7.2.3). Sizes may differ between ranks. If one rank cannot, all fail and
    /// none keeps the segment.
    ///
    /// # Errors
    /// Those of alloc, register and barrier.
    pub fn segment_create(
        &self,
        segment: SegmentId,
        size: u64,
        group: GroupId,
        timeout: Timeout,
        init: Init,
    ) -> Result<()> {
        let inner = self.inner();
        let kind = CallKind::SegmentCreate;
        inner.make_together(kind, segment, size, group, timeout, || {
            inner.alloc(segment, size, init)
        })?;
        inner.count(Counter::SegmentCreate, 1);
        Ok(())
    }

    /// Makes memory of the program a segment (GASPI 17.1, 7.2.4). Local. Segments may overlap.
    ///
    /// # Errors
    /// As [`segment_alloc`](Runtime::segment_alloc). [`Error::SegmentSize`] also if not all of the
    /// memory is mapped.
    ///
    /// # Safety
    /// `pointer` is valid for reads and writes of `size` bytes until the segment was deleted, and
    /// the program accesses it as memory that others write: not through Rust references.
    pub unsafe fn segment_bind(
        &self,
        segment: SegmentId,
        pointer: *mut u8,
        size: u64,
    ) -> Result<()> {
        self.inner().bind(segment, pointer, size)?;
        self.inner().count(Counter::SegmentBind, 1);
        Ok(())
    }

    /// [`segment_bind`](Runtime::segment_bind), then as
    /// [`segment_create`](Runtime::segment_create) (GASPI 17.1, 7.2.5).
    ///
    /// # Errors
    /// Those of bind, register and barrier.
    ///
    /// # Safety
    /// As [`segment_bind`](Runtime::segment_bind).
    pub unsafe fn segment_use(
        &self,
        segment: SegmentId,
        pointer: *mut u8,
        size: u64,
        group: GroupId,
        timeout: Timeout,
    ) -> Result<()> {
        let inner = self.inner();
        let arguments = size ^ (pointer as u64).rotate_left(32);
        inner.make_together(CallKind::SegmentUse, segment, arguments, group, timeout, || {
            inner.bind(segment, pointer, size)
        })?;
        inner.count(Counter::SegmentUse, 1);
        Ok(())
    }

    /// Segments of this rank.
    pub fn segment_num(&self) -> u32 {
        self.inner().memory.segments.ids().count() as u32
    }

    /// Ids of the segments of this rank, ascending.
    pub fn segment_list(&self) -> Vec<SegmentId> {
        self.inner().memory.segments.ids().collect()
    }

    /// The first byte of a segment of this rank. Others may write there at any time.
    ///
    /// # Errors
    /// [`Error::InvalidSegment`].
    pub fn segment_ptr(&self, segment: SegmentId) -> Result<*mut u8> {
        let inside = epoch::enter();
        Ok(self.inner().local(segment, &inside)?.pointer())
    }

    /// Segments that may exist at once.
    pub fn segment_max(&self) -> u32 {
        self.inner().config.segment_max
    }

    /// The lowest free segment id.
    ///
    /// # Errors
    /// [`Error::TooManySegments`].
    pub fn segment_avail_local(&self) -> Result<SegmentId> {
        let limit = self.inner().config.segment_max;
        let used: Vec<SegmentId> = self.inner().memory.segments.ids().collect();
        let mut ids = (0..limit).map(|id| SegmentId(id as u8));
        ids.find(|id| !used.contains(id)).ok_or(Error::TooManySegments { limit })
    }

    /// Bytes of a segment of this rank, or of one that `rank` registered with it.
    ///
    /// # Errors
    /// [`Error::InvalidRank`], [`Error::InvalidSegment`].
    pub fn segment_size(&self, segment: SegmentId, rank: Rank) -> Result<u64> {
        let inside = epoch::enter();
        self.inner().ranks.check_rank(rank)?;
        let target = self.inner().target(rank, segment, &inside)?;
        // What is known of the segments of a rank that has ended is forgotten a moment later.
        let has_ended = self.inner().ranks.liveness(rank) != liveness::JOINED;
        if has_ended || !target.alive() {
            let end = self.inner().ranks.end_of(rank);
            let reason = end.unwrap_or_else(|| format!("{rank} has deleted it"));
            return Err(Error::InvalidSegment { segment, reason });
        }
        Ok(target.size)
    }

    /// Copies bytes into a segment of this rank.
    ///
    /// # Errors
    /// [`Error::InvalidSegment`], [`Error::LocalOffset`], [`Error::CommSize`].
    pub fn segment_write(&self, segment: SegmentId, offset: u64, bytes: &[u8]) -> Result<()> {
        let inside = epoch::enter();
        let found = self.inner().local(segment, &inside)?;
        check_range(found, offset, bytes.len() as u64)?;
        let to = found.pointer().wrapping_add(offset as usize);
        // SAFETY: the range lies inside of the segment, which exists while the guard lives; a
        // caller's slice cannot overlap with it without unsafe code of his.
        unsafe { std::ptr::copy(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// Copies bytes out of a segment of this rank.
    ///
    /// # Errors
    /// [`Error::InvalidSegment`], [`Error::LocalOffset`], [`Error::CommSize`].
    pub fn segment_read(&self, segment: SegmentId, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let inside = epoch::enter();
        let found = self.inner().local(segment, &inside)?;
        check_range(found, offset, bytes.len() as u64)?;
        let from = found.pointer().wrapping_add(offset as usize);
        // SAFETY: as in `segment_write`.
        unsafe { std::ptr::copy(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }
}

fn check_range(segment: &Segment, offset: u64, size: u64) -> Result<()> {
    let limit = segment.size;
    if offset > limit || (offset == limit && size > 0) {
        return Err(Error::LocalOffset { segment: segment.id, offset, size: limit });
    }
    if size > limit - offset {
        let reason =
            format!("only {} bytes are left at {offset} of {}", limit - offset, segment.id);
        return Err(Error::CommSize { size, reason });
    }
    Ok(())
}
