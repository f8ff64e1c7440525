//! Two ranks that measure together: the first acts, the second is the target; and the memory that
//! they share beside the library.

use crate::arguments::Paired;
use crate::connections::Streams;
use crate::failure::{Failure, Result};
use crate::job::{Job, Segment};
use crate::machine;
use crate::memory::{APART, PAGE, Region, Rotation, Shared};
use crate::raw_verbs::{Offer, Verbs};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The segment of a test.
pub(crate) const SEGMENT: u8 = 1;

/// What this rank does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Initiator,
    Target,
    /// Belongs to no pair.
    Idle,
}

/// Lines of a pair that the limits work on, by the distance [`APART`].
pub(crate) const INITIATOR_FLAG: usize = 0;
pub(crate) const TARGET_FLAG: usize = APART;
pub(crate) const COUNTER: usize = 2 * APART;
pub(crate) const BATON: usize = 3 * APART;
pub(crate) const INITIATOR_BELL: usize = 4 * APART;
pub(crate) const TARGET_BELL: usize = 5 * APART;

/// The memory of all pairs for one row of one test.
#[derive(Debug)]
pub(crate) struct Ground<'a> {
    job: &'a Job,
    /// The memory of this rank's pair, as devices know it. Before the memory: the order of ends.
    verbs: Option<Verbs<'a>>,
    shared: Shared,
    pub(crate) segment: Segment<'a>,
    pairs: usize,
    rotation: Rotation,
}

impl<'a> Ground<'a> {
    /// Memory for buffers of this size, made by all ranks together.
    pub(crate) fn new(job: &'a Job, pairs: usize, size: usize, cold: bool) -> Result<Ground<'a>> {
        let rotation = rotation(size, cold);
        let half = rotation.total.next_multiple_of(PAGE);
        let shared = job.share(pairs * (PAGE + 2 * half))?;
        let segment = job.segment(SEGMENT, 2 * half)?;
        let mut ground = Ground { job, verbs: None, shared, segment, pairs, rotation };
        let mut offer = None;
        if let Some(pair) = ground.pair() {
            pair.raw_in.touch();
            if let Some(end) = &job.verbs {
                let own = (pair.source, pair.raw_in);
                offer = Some(Offer::make(end, &ground.segment, pair.peer, own)?);
                job.wait(0)?;
            }
        }
        job.barrier()?;
        ground.verbs = offer.map(|offer| offer.meet(ground.halves().0)).transpose()?;
        Ok(ground)
    }

    /// How this rank sees its pair; nothing if it belongs to none.
    pub(crate) fn pair(&self) -> Option<Pair<'_>> {
        let rank = self.job.rank;
        let role = role(rank, self.pairs);
        if role == Role::Idle {
            return None;
        }
        let half = self.rotation.total.next_multiple_of(PAGE);
        let all = self.shared.region().part(rank / 2 * (PAGE + 2 * half), PAGE + 2 * half);
        let (first, second) = (all.part(PAGE, half), all.part(PAGE + half, half));
        let (raw_in, raw_out) =
            if role == Role::Initiator { (first, second) } else { (second, first) };
        Some(Pair {
            job: self.job,
            role,
            peer: rank ^ 1,
            words: all.part(0, PAGE),
            raw_in,
            raw_out,
            streams: self.job.streams.as_ref(),
            verbs: self.verbs.as_ref(),
            segment: &self.segment,
            source: self.segment.region.part(0, half),
            inbox: self.segment.region.part(half, half),
            inbox_offset: half,
            rotation: self.rotation,
            lanes: AtomicUsize::new(0),
            step: AtomicU64::new(0),
        })
    }

    /// Refuses a job whose pairs have no memory in common for their limits, though they do not talk
    /// over TCP; on all ranks alike.
    pub(crate) fn demand_limits(&self) -> Result<()> {
        let job = self.job;
        let unlike = |rank: &usize| !job.links.one_memory && !job.has_streams(*rank);
        let Some(rank) = (0..self.participants()).find(unlike) else { return Ok(()) };
        let failure = Failure::usage(format!(
            "ranks {rank} and {} share memory, but not all ranks of this job do; measure them in a \
             job of their host, or all with --transport tcp",
            rank ^ 1
        ));
        Err(if job.rank == 0 { failure } else { failure.silent() })
    }

    /// Bytes of a buffer.
    pub(crate) fn size(&self) -> usize {
        self.rotation.size
    }

    /// Ranks that take part.
    pub(crate) fn participants(&self) -> usize {
        (2 * self.pairs).min(self.job.ranks)
    }

    /// Lines that all ranks may work on.
    pub(crate) fn words(&self) -> Region<'_> {
        self.shared.region().part(0, PAGE)
    }

    /// The halves of this rank's segment.
    pub(crate) fn halves(&self) -> (Region<'_>, Region<'_>) {
        let half = self.rotation.total.next_multiple_of(PAGE);
        (self.segment.region.part(0, half), self.segment.region.part(half, half))
    }

    /// Gives the memory back, on all ranks together.
    pub(crate) fn delete(self) -> Result<()> {
        // Devices forget the memory before it goes.
        drop(self.verbs);
        self.segment.delete()
    }
}

/// The buffers of a test with this size.
pub(crate) fn rotation(size: usize, cold: bool) -> Rotation {
    if cold { Rotation::cold(size, machine::cold_span()) } else { Rotation::warm(size) }
}

fn role(rank: usize, pairs: usize) -> Role {
    match (rank < 2 * pairs, rank % 2) {
        (false, _) => Role::Idle,
        (true, 0) => Role::Initiator,
        (true, _) => Role::Target,
    }
}

/// One side of a pair.
#[derive(Debug)]
pub(crate) struct Pair<'a> {
    pub(crate) job: &'a Job,
    pub(crate) role: Role,
    pub(crate) peer: usize,
    /// Lines that both work on; over TCP and verbs only this rank.
    pub(crate) words: Region<'a>,
    /// Raw memory that the peer writes, or sends to.
    pub(crate) raw_in: Region<'a>,
    /// Raw memory that this rank writes for the peer; over TCP and verbs nobody else has it.
    pub(crate) raw_out: Region<'a>,
    /// Connections with the peer, if that is reached over TCP.
    pub(crate) streams: Option<&'a Streams>,
    /// The raw pair with the peer, if that is reached by verbs.
    pub(crate) verbs: Option<&'a Verbs<'a>>,
    pub(crate) segment: &'a Segment<'a>,
    /// The half of the own segment that data comes from.
    pub(crate) source: Region<'a>,
    /// The half of the own segment that the peer writes.
    pub(crate) inbox: Region<'a>,
    /// Where that half begins.
    pub(crate) inbox_offset: usize,
    rotation: Rotation,
    lanes: AtomicUsize,
    step: AtomicU64,
}

/// What carries data between the ranks of a pair.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way<'a> {
    Memory,
    Tcp(&'a Streams),
    Verbs(&'a Verbs<'a>),
}

impl<'a> Pair<'a> {
    /// What the limits of this pair go by.
    pub(crate) fn way(&self) -> Way<'a> {
        match (self.streams, self.verbs) {
            (Some(streams), _) => Way::Tcp(streams),
            (None, Some(verbs)) => Way::Verbs(verbs),
            (None, None) => Way::Memory,
        }
    }

    /// Whether what is posted is there later only, by TCP or verbs.
    pub(crate) fn is_remote(&self) -> bool {
        !matches!(self.way(), Way::Memory)
    }
}

impl Pair<'_> {
    pub(crate) fn is_initiator(&self) -> bool {
        self.role == Role::Initiator
    }

    /// Bytes of a buffer.
    #[inline(always)]
    pub(crate) fn size(&self) -> usize {
        self.rotation.size
    }

    /// The buffers of the next lane. Both ranks make their lanes in the same order.
    pub(crate) fn rotation(&self) -> Rotation {
        // Relaxed: only the main thread of a rank makes lanes.
        self.rotation.beginning(self.lanes.fetch_add(1, Ordering::Relaxed))
    }

    /// The second rank of the pair.
    pub(crate) fn other(&self) -> usize {
        self.job.rank.max(self.peer)
    }

    /// Numbers for the next `count` steps that both ranks take alike: the first is one more than
    /// what is returned, and none comes twice.
    pub(crate) fn steps(&self, count: usize) -> u64 {
        // Relaxed: only the main thread of a rank takes steps.
        self.step.fetch_add(count as u64, Ordering::Relaxed)
    }

    /// Own word and the peer's of two that stand at these offsets.
    pub(crate) fn words(&self, initiator: usize, target: usize) -> (&AtomicU64, &AtomicU64) {
        let (initiator, target) = (self.words.word(initiator), self.words.word(target));
        if self.is_initiator() { (initiator, target) } else { (target, initiator) }
    }
}

/// Makes the memory of one row of one pair, and gives it back.
pub(crate) fn on_ground(
    job: &Job,
    size: usize,
    cold: bool,
    row: impl FnOnce(&Ground<'_>) -> Result<()>,
) -> Result<()> {
    let ground = Ground::new(job, 1, size, cold)?;
    row(&ground)?;
    ground.delete()
}

/// What tests of pairs have in common: makes the memory for each size, and lets `row` measure.
pub(crate) fn for_each_size(
    job: &Job,
    paired: &Paired,
    default: &[usize],
    mut row: impl FnMut(&Ground<'_>, Option<&Pair<'_>>, usize) -> Result<()>,
) -> Result<()> {
    for size in paired.sizes.sizes(default)? {
        let ground = Ground::new(job, paired.pairs, size, paired.sizes.cold)?;
        ground.demand_limits()?;
        row(&ground, ground.pair().as_ref(), size)?;
        ground.delete()?;
    }
    Ok(())
}
