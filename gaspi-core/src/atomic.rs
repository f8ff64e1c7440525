//! Atomic operations on 8 bytes of any rank's segment (GASPI 17.1, 10).
//!
//! One CPU instruction where the target is mapped; where it is memory of another process, its
//! owner's progress executes the same instruction, so that all are atomic among each other and
//! against the owner's own. With GASPI_ATOMICS=nic the device of the owner executes them all, its
//! own included unless the device is atomic with processors.

use crate::callback::may_wait;
use crate::error::{Error, Result};
use crate::fast_path::FastPath;
use crate::ids::{Rank, SegmentId};
use crate::runtime::{Inner, Runtime};
use crate::statistics::PeerCounter;
use crate::sync::{AtomicU64, epoch};
use crate::timeout::{Deadline, Timeout};
use crate::transport::Carried;
use crate::transport::endpoint::CarrierKind;
use crate::transport::requests::RequestKey;
use crate::transport::software_target::apply;
use crate::transport::verbs::{Remote, Verbs};
use crate::wait::Call;
use crate::wait::waiting;
use crate::wire::message::{AtomicOperation, RemoteAddress, RemoteCall};

const SIZE: u64 = size_of::<u64>() as u64;

impl Inner {
    /// Executes it, whatever that takes.
    #[cold]
    fn atomic(
        &self,
        segment: SegmentId,
        offset: u64,
        rank: Rank,
        operation: AtomicOperation,
        timeout: Timeout,
    ) -> Result<u64> {
        let inside = epoch::enter();
        let target = self.target(rank, segment, &inside)?;
        if offset >= target.size || target.size - offset < SIZE {
            return Err(Error::RemoteOffset { rank, segment, offset, size: target.size });
        }
        if !offset.is_multiple_of(SIZE) {
            return Err(Error::Unaligned { offset });
        }
        self.count_for(&inside, rank, PeerCounter::Atomics, 1);
        let word = target.data(offset).cast::<AtomicU64>();
        let by_device = self.endpoints.atomics_by_device;
        // Bound memory may begin anywhere.
        if target.alive() && !by_device && !word.is_null() && word.is_aligned() {
            // SAFETY: inside of the mapping, which exists while the guard lives, and aligned; peers
            // access it with atomics or as raw memory.
            return Ok(apply(unsafe { &*word }, operation));
        }
        let (alive, generation) = (target.alive(), target.generation);
        drop(inside);
        may_wait(timeout, Call::Atomic.name())?;
        if !alive {
            return Err(self.ranks.deleted(rank, segment, "atomic"));
        }
        let remote = RemoteAddress { segment, generation, offset };
        if let Some(verbs) = self.endpoints.atomics(self, self.ranks.is_local(rank)) {
            return self.ask_device(verbs, remote, rank, operation, timeout);
        }
        if rank == self.ranks.me {
            return Err(Error::Unaligned { offset });
        }
        self.ask_owner(remote, rank, operation, timeout)
    }

    /// Has the owner's device do it.
    fn ask_device(
        &self,
        verbs: Verbs<'_>,
        remote: RemoteAddress,
        rank: Rank,
        operation: AtomicOperation,
        timeout: Timeout,
    ) -> Result<u64> {
        let place = if rank == self.ranks.me {
            self.own_place(verbs, remote)?
        } else {
            verbs.place_of_peer(rank, remote)?
        };
        let key = RequestKey::Atomic { remote, rank, operation };
        let deadline = timeout.deadline();
        self.count_carried(rank, CarrierKind::Verbs, Carried::Atomic);
        let call = verbs.atomic(&key, rank, place, operation)?;
        let waiting = waiting(Call::Atomic, remote.segment.0);
        self.finish_call(key, rank, call, deadline, waiting)
    }

    /// Where a word of this rank lies, for its device.
    fn own_place(&self, verbs: Verbs<'_>, remote: RemoteAddress) -> Result<Remote> {
        let inside = epoch::enter();
        let found = self.memory.segments.get(remote.segment, &inside);
        let segment = found.ok_or_else(|| self.no_segment(remote.segment))?;
        verbs.table.own_place(segment, remote.offset).map_err(|reason| Error::System {
            call: format!("registering {} with the RDMA device", remote.segment),
            reason,
        })
    }

    /// Has the owner's progress do it.
    fn ask_owner(
        &self,
        remote: RemoteAddress,
        rank: Rank,
        operation: AtomicOperation,
        timeout: Timeout,
    ) -> Result<u64> {
        let key = RequestKey::Atomic { remote, rank, operation };
        let call = RemoteCall::Atomic { remote, operation };
        self.count_carried(rank, CarrierKind::Stream, Carried::Atomic);
        let waiting = waiting(Call::Atomic, remote.segment.0);
        let carried = self.endpoints.stream.connections.is_carried(rank);
        // By a device it goes at once.
        let begun = (!carried).then(|| timeout.deadline());
        let call = match begun {
            None => self.call(key, rank, Deadline::Now, call, &[])?,
            Some(deadline) => self.call_with_data(key, rank, deadline, call, waiting)?,
        };
        // The answer most often comes soon.
        if timeout != Timeout::Test
            && let Some(Ok(value)) = self.look_for_message(waiting.call, || call.outcome())
        {
            return Ok(value);
        }
        let deadline = begun.unwrap_or_else(|| timeout.deadline());
        self.finish_call(key, rank, call, deadline, waiting)
    }
}

impl Runtime {
    /// Adds to 8 bytes at `offset` of a segment of `rank` and returns the former value
    /// (GASPI 17.1, 10.2.1). Wraps.
    ///
    /// # Errors
    /// [`Error::InvalidSegment`], [`Error::InvalidRank`], [`Error::RemoteOffset`],
    /// [`Error::Unaligned`], [`Error::Timeout`], [`Error::RankDied`], [`Error::RankLeft`],
    /// [`Error::Refused`].
    #[inline]
    pub fn atomic_fetch_add(
        &self,
        segment: SegmentId,
        offset: u64,
        rank: Rank,
        add: u64,
        timeout: Timeout,
    ) -> Result<u64> {
        match self.try_fast(|fast| fast.atomic_fetch_add(segment, offset, rank, add)) {
            Some(old) => Ok(old),
            None => {
                let operation = AtomicOperation::FetchAdd { add };
                self.inner().atomic(segment, offset, rank, operation, timeout)
            }
        }
    }

    /// Replaces 8 bytes at `offset` of a segment of `rank` by `new` if they are `comparator`, and
    /// returns the former value (GASPI 17.1, 10.2.2).
    ///
    /// # Errors
    /// As [`atomic_fetch_add`](Runtime::atomic_fetch_add).
    #[inline]
    pub fn atomic_compare_swap(
        &self,
        segment: SegmentId,
        offset: u64,
        rank: Rank,
        comparator: u64,
        new: u64,
        timeout: Timeout,
    ) -> Result<u64> {
        let fast =
            |fast: FastPath<'_>| fast.atomic_compare_swap(segment, offset, rank, comparator, new);
        match self.try_fast(fast) {
            Some(old) => Ok(old),
            None => {
                let operation = AtomicOperation::CompareSwap { comparator, new };
                self.inner().atomic(segment, offset, rank, operation, timeout)
            }
        }
    }
}
