//! Plans of the standard's all-reduces, over the arrivals and stages of a group.

use std::sync::Arc;

use gaspi_core::{Error, Result, STAGE_BYTES};

use super::Plan;
use super::single_phase::{Origin, SinglePhase};
use crate::algorithms::Algorithm;
use crate::collective::Collective;
use crate::steps::{LINE_BYTES, Shape, Step};

/// From this size on slicing pays: a rank saves reading its bytes (n - 3) times, and waits for one
/// more arrival. With two or three members there is nothing to save.
const SLICED_SAVES_BYTES_MIN: u64 = 128 << 10;
/// Approximate limit of a plan's steps: longer operations are carried out in pieces.
const STEPS_MAX: u64 = 1 << 14;

/// The key of a plan: all that it depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StandardKey {
    pub(crate) me: u32,
    pub(crate) size: u32,
    pub(crate) count: u64,
    pub(crate) element_bytes: u64,
    /// Whether a function of the program combines, which may fail.
    pub(crate) user: bool,
    /// Whether leaders of nodes tell each other what all have staged: slices would go from each
    /// rank to each of other nodes.
    pub(crate) by_leaders: bool,
}

impl StandardKey {
    pub(crate) fn bytes(&self) -> u64 {
        self.count * self.element_bytes
    }

    /// Depends only on what all members know. A function of the program gets staged data, and lines
    /// carry its failures.
    pub(crate) fn algorithm(&self) -> Algorithm {
        if self.user {
            Algorithm::CopyInCopyOut
        } else if self.slices_save() && !self.by_leaders && self.fits(Algorithm::SlicedCopy) {
            Algorithm::SlicedCopy
        } else if self.bytes() <= LINE_BYTES {
            Algorithm::Inline
        } else {
            Algorithm::CopyInCopyOut
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
            // There are no messages.
            message_bytes: STAGE_BYTES as u64,
            slots: 0,
            stage_bytes: STAGE_BYTES as u64,
            shares_cores: false,
            one_machine: false,
        }
    }

    /// The steps. Where a function may fail, a barrier follows, so that all members learn of it.
    pub(crate) fn steps(&self) -> Option<Vec<Step>> {
        let shape = self.shape();
        let mut steps = self.algorithm().steps(Collective::Allreduce, &shape)?;
        if self.user {
            steps.extend(Algorithm::Inline.steps(Collective::Barrier, &shape)?);
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
            zero_copy_sends: Vec::new(),
            buffers_output: false,
        }))
    }

    /// Elements of a piece; only the last has fewer.
    pub(crate) fn piece(&self) -> u64 {
        let rounds = (STEPS_MAX / (u64::from(self.size) + 4)).max(1);
        rounds * STAGE_BYTES as u64 / self.element_bytes
    }
}

#[cfg(test)]
#[path = "standard_tests.rs"]
mod tests;
