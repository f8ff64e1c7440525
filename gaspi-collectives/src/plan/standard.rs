//! Plans of the standard's all-reduces, over the arrivals, stages and chunks of a group.

use std::sync::Arc;

use gaspi_core::{CHUNKS_MAX, Error, Result, STAGE_BYTES};

use super::single_phase::{Origin, SinglePhase};
use super::{Plan, ZeroCopy};
use crate::algorithms::Algorithm;
use crate::collective::Collective;
use crate::steps::{LINE_BYTES, Shape, Step};

/// From this size on slicing pays: a rank saves reading its bytes (n - 3) times, and waits for one
/// more arrival. With two or three members there is nothing to save.
const SLICED_SAVES_BYTES_MIN: u64 = 128 << 10;
/// Approximate limit of a plan's steps: longer operations are carried out in pieces.
const STEPS_MAX: u64 = 1 << 14;

/// Chunks of a piece along the chain. A member keeps what it sends of one piece, up once and down
/// twice, and what has come of it: 5 MiB at most.
const CHAINED: u64 = 64;
const _: () = assert!(CHAINED <= CHUNKS_MAX as u64);
/// Up to so many members tell each other by messages of each to each what fits into one stage: that
/// is fewer hops than a chain has.
const DIRECT_MEMBERS_MAX: u32 = 8;

/// How what members stage reaches other nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Delivery {
    /// There are none, or each member sends it to each.
    Direct,
    /// Leaders of nodes tell each other what all have staged: slices would go from each to each.
    Leaders,
    /// What leaders have no room for goes along a chain of all members, see `algorithms/chain.rs`,
    /// in pieces between two steps: all have called the same, and all have the result. Shorter
    /// data does not.
    Chain,
}

impl Delivery {
    /// In a group of so many members, whose leaders, if there are any, have room for so many bytes
    /// of each or not.
    pub(crate) fn of(size: u32, bytes: u64, has_room: Option<bool>) -> Delivery {
        let is_long = size > DIRECT_MEMBERS_MAX || size > 3 && bytes > STAGE_BYTES as u64;
        match has_room {
            Some(true) => Delivery::Leaders,
            Some(false) if is_long => Delivery::Chain,
            _ => Delivery::Direct,
        }
    }
}

/// The key of a plan: all that it depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StandardKey {
    pub(crate) me: u32,
    pub(crate) size: u32,
    pub(crate) count: u64,
    pub(crate) element_bytes: u64,
    /// Whether a function of the program combines, which may fail.
    pub(crate) user: bool,
    pub(crate) delivery: Delivery,
}

impl StandardKey {
    pub(crate) fn bytes(&self) -> u64 {
        self.count * self.element_bytes
    }

    /// Depends only on what all members know. A function of the program gets staged data, and lines
    /// carry its failures.
    pub(crate) fn algorithm(&self) -> Algorithm {
        if self.user {
            self.staged()
        } else if self.slices_save()
            && self.delivery == Delivery::Direct
            && self.fits(Algorithm::SlicedCopy)
        {
            Algorithm::SlicedCopy
        } else if self.bytes() <= LINE_BYTES {
            Algorithm::Inline
        } else {
            self.staged()
        }
    }

    fn staged(&self) -> Algorithm {
        match self.delivery {
            Delivery::Direct | Delivery::Leaders => Algorithm::CopyInCopyOut,
            Delivery::Chain => Algorithm::Linear,
        }
    }

    /// Whether slicing pays in one node.
    fn slices_save(&self) -> bool {
        let saved = self.bytes().saturating_mul(u64::from(self.size).saturating_sub(3));
        saved > SLICED_SAVES_BYTES_MIN
    }

    fn fits(&self, algorithm: Algorithm) -> bool {
        algorithm.fits(Collective::Allreduce, &self.shape())
    }

    /// How one arrival does it; `None` if it takes more.
    pub(crate) fn single_phase(&self) -> Option<SinglePhase> {
        let staged = self.bytes() > LINE_BYTES;
        let fits = match self.algorithm() {
            Algorithm::Inline => true,
            Algorithm::CopyInCopyOut => self.bytes() <= STAGE_BYTES as u64 && !self.user,
            _ => false,
        };
        fits.then_some(SinglePhase { staged, from: Origin::All })
    }

    fn shape(&self) -> Shape {
        let StandardKey { me, size, count, element_bytes, .. } = *self;
        Shape {
            me,
            size,
            count,
            counts: Vec::new(),
            sends: Vec::new(),
            receives: Vec::new(),
            element_bytes,
            root: 0,
            nodes: Vec::new(),
            // Chunks are the only messages, and all of a piece may be under way.
            message_bytes: STAGE_BYTES as u64,
            slots: CHAINED as u32,
            stage_bytes: STAGE_BYTES as u64,
            shares_cores: false,
            one_machine: false,
            agreed: true,
        }
    }

    /// The steps. Where a function may fail, a barrier follows, so that all members learn of it.
    /// The chain is between two.
    pub(crate) fn steps(&self) -> Option<Vec<Step>> {
        let (shape, algorithm) = (self.shape(), self.algorithm());
        let is_chain = algorithm == Algorithm::Linear;
        let barrier = || Algorithm::Inline.steps(Collective::Barrier, &shape);
        let mut steps = if is_chain { barrier()? } else { Vec::new() };
        steps.extend(algorithm.steps(Collective::Allreduce, &shape)?);
        if self.user || is_chain {
            steps.extend(barrier()?);
        }
        Some(steps)
    }

    pub(crate) fn plan(&self) -> Result<Arc<Plan>> {
        let algorithm = self.algorithm();
        let steps = self.steps().ok_or_else(|| {
            let reason = format!("{algorithm} has no steps for elements of {}", self.element_bytes);
            Error::Unsupported { reason }
        })?;
        Ok(Arc::new(Plan {
            algorithm,
            steps,
            scratch_bytes: 0,
            fallback: None,
            extents: Vec::new(),
            own: [self.bytes(); 2],
            before: 0,
            posts_receives: false,
            apart_bytes: 0,
            zero_copy: ZeroCopy::default(),
            buffers_output: false,
            agrees_by_steps: false,
        }))
    }

    /// Elements of a piece; only the last has fewer.
    pub(crate) fn piece(&self) -> u64 {
        if self.algorithm() == Algorithm::Linear {
            return CHAINED * (STAGE_BYTES as u64 / self.element_bytes);
        }
        let rounds = (STEPS_MAX / (u64::from(self.size) + 4)).max(1);
        rounds * STAGE_BYTES as u64 / self.element_bytes
    }
}

#[cfg(test)]
#[path = "standard_tests.rs"]
mod tests;
