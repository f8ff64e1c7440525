//! Steps of fused buffers of other kinds, beside plain ones.

use super::{FLOAT, Gradients, schedule};
use crate::arguments::{FusedStep, Wire};
use crate::failure::Result;
use crate::job::Job;
use crate::library::Fusions;
use crate::measure::{Lane, interleave, timed};
use crate::row::Row;

const TYPE_F16: u32 = 32;
const TYPE_BF16: u32 = 33;
const MODE_FAST: u32 = 1;
const MODE_STABLE: u32 = 2;

/// What a fused buffer does with its values. A plain one carries them as they are.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Kind {
    /// As what they travel.
    pub(super) wire: Option<Wire>,
    /// As the library counts modes; 0: what GASPI_COLL_MODE says.
    mode: u32,
}

impl Kind {
    /// Those that are measured beside a plain one.
    pub(super) fn wanted(step: &FusedStep) -> impl Iterator<Item = Kind> {
        let narrow = step.wire.map(|wire| Kind { wire: Some(wire), mode: 0 });
        let stable = step.stable.then_some(Kind { wire: None, mode: MODE_STABLE });
        narrow.into_iter().chain(stable)
    }

    /// Type and mode as the library counts them; 0 is no type.
    pub(super) fn numbers(self) -> [u32; 2] {
        let wire = match self.wire {
            None => 0,
            Some(Wire::F16) => TYPE_F16,
            Some(Wire::Bf16) => TYPE_BF16,
        };
        [wire, self.mode]
    }

    /// What rounding on the way may come to, in terms of the sum of so many ranks.
    pub(super) fn tolerance(self, ranks: usize) -> f32 {
        let digits = match self.wire {
            None => return 1e-6,
            Some(Wire::F16) => 11,
            Some(Wire::Bf16) => 8,
        };
        ranks as f32 / (1 << digits) as f32
    }

    /// What it is measured beside.
    fn plain(self) -> Kind {
        let mode = if self.mode == MODE_STABLE { MODE_FAST } else { self.mode };
        Kind { wire: None, mode }
    }

    /// How rows call it, and what it is compared with.
    fn names(self) -> (&'static str, &'static str) {
        match self.wire {
            None => ("stable", "fast"),
            Some(Wire::F16) => ("wire f16", "wire f32"),
            Some(Wire::Bf16) => ("wire bf16", "wire f32"),
        }
    }
}

/// A step of this kind, from private memory and back, beside a plain one.
pub(super) fn compared(
    job: &Job,
    procedures: Fusions,
    counts: &[usize],
    step: &FusedStep,
    kind: Kind,
) -> Result<Row> {
    let bytes = counts.iter().sum::<usize>() * FLOAT;
    let of =
        |kind| Gradients::new(job, procedures, counts, step, kind).map(Gradients::with_private);
    let (plain, other) = (of(kind.plain())?, of(kind)?);
    let lane =
        |gradients: &Gradients<'_>, batch| timed(batch, || gradients.step_copied()).map(Some);
    let measured = {
        let mut lanes =
            [Lane::new(|batch| lane(&plain, batch)), Lane::new(|batch| lane(&other, batch))];
        interleave(job, job.ranks, schedule(&step.all.plain, bytes), &mut lanes, |_| {
            other.wrong_of_copied()
        })?
    };
    plain.free()?;
    other.free()?;
    let (variant, limit) = kind.names();
    let [plain, other] = [0, 1].map(|lane| measured.samples[lane].clone());
    let row = Row::new("fusion", variant, other).size(bytes).errors(measured.errors);
    Ok(row.limit(limit, plain.median()))
}
