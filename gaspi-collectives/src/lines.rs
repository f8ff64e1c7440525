//! All-reduces of the standard, planned: by lines and stages of the group, which carry its barriers
//! too, so that ranks that call different ones find out, and which members of several nodes have as
//! well.
//!
//! What is kept of a call that times out is how far it has come, see [`GroupCall::set_cursor`]. A
//! step that waits is the only one at which it can be left, and all before it has happened.

use std::sync::Arc;

use gaspi_core::{Deadline, Error, GroupCall, Result, Runtime, STAGE_BYTES};

use crate::algorithms::{Algorithm, Collective};
use crate::datatype::{DataType, Operation};
use crate::engine::{Engine, lock};
use crate::kernel;
use crate::once::{Once, Origin};
use crate::plan::Plan;
use crate::request::Reducer;
use crate::steps::{LINE_BYTES, Shape, Step};
use crate::task::{Arithmetic, Buffers, Tally, Task};
use crate::user::{Function, OfTheCall};

/// Where slicing begins to pay: a rank saves reading its bytes (n - 3) times, and has one more
/// arrival to wait for. With two or three members there is nothing to save.
const SLICED_SAVES_BYTES_MIN: u64 = 128 << 10;
/// Steps of a plan, about: what takes more is carried out in pieces, one after the other.
const STEPS_MAX: u64 = 1 << 14;
/// Bits of the cursor that tell the step; those above tell the piece.
const STEP_BITS: u32 = u32::BITS;

/// What a plan depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    pub(crate) me: u32,
    pub(crate) size: u32,
    pub(crate) count: u64,
    pub(crate) element_bytes: u64,
    /// Whether a function of the program combines, which may fail.
    pub(crate) user: bool,
}

impl Key {
    /// That of a call, of elements of that size.
    pub(crate) fn of(call: &GroupCall<'_>, count: u64, element_bytes: u64, user: bool) -> Key {
        let (me, size) = (call.me() as u32, call.ranks().len() as u32);
        Key { me, size, count, element_bytes, user }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.count * self.element_bytes
    }

    /// Uses nothing but what all members know. A function is handed what has been staged, and its
    /// failures ride in the lines.
    fn algorithm(&self) -> Algorithm {
        let saved = self.bytes().saturating_mul(u64::from(self.size).saturating_sub(3));
        if self.user {
            Algorithm::Staged
        } else if saved > SLICED_SAVES_BYTES_MIN && self.fits(Algorithm::Sliced) {
            Algorithm::Sliced
        } else if self.bytes() <= LINE_BYTES {
            Algorithm::Line
        } else {
            Algorithm::Staged
        }
    }

    fn fits(&self, algorithm: Algorithm) -> bool {
        algorithm.fits(Collective::Allreduce, &self.shape())
    }

    /// How one arrival does it; `None` if it takes more.
    fn once(&self) -> Option<Once> {
        let staged = self.bytes() > LINE_BYTES;
        let few = match self.algorithm() {
            Algorithm::Line => true,
            Algorithm::Staged => self.bytes() <= STAGE_BYTES as u64 && !self.user,
            _ => false,
        };
        few.then_some(Once { staged, from: Origin::All })
    }

    fn shape(&self) -> Shape {
        let Key { me, size, count, element_bytes, .. } = *self;
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

    /// The steps. Where a function may fail all meet once more, so that all hear of it.
    pub(crate) fn steps(&self) -> Option<Vec<Step>> {
        let shape = self.shape();
        let mut steps = self.algorithm().steps(Collective::Allreduce, &shape)?;
        if self.user {
            steps.extend(Algorithm::Line.steps(Collective::Barrier, &shape)?);
        }
        Some(steps)
    }

    fn plan(&self) -> Result<Arc<Plan>> {
        let algorithm = self.algorithm();
        let steps = self.steps().ok_or_else(|| {
            let reason = format!("{algorithm} has no steps for elements of {}", self.element_bytes);
            Error::Unsupported { reason }
        })?;
        Ok(Arc::new(Plan {
            algorithm,
            steps,
            scratch_bytes: 0,
            detour: None,
            extents: Vec::new(),
            own: [self.bytes(); 2],
            before: 0,
            expects: false,
            lends: Vec::new(),
            keeps_apart: false,
        }))
    }

    /// Elements of a piece; only the last has fewer.
    fn piece(&self) -> u64 {
        let rounds = (STEPS_MAX / (u64::from(self.size) + 4)).max(1);
        rounds * STAGE_BYTES as u64 / self.element_bytes
    }
}

/// Carries out a call of a built-in operation, or what is left of it.
///
/// # Errors
/// Those of [`GroupCall::await_all`].
#[inline]
pub(crate) fn run(
    rt: &Runtime,
    call: GroupCall<'_>,
    key: Key,
    buffers: Buffers<'static>,
    (op, ty): (Operation, DataType),
    deadline: Deadline,
) -> Result<()> {
    if key.size == 1 {
        return run_alone(call, buffers);
    }
    match key.once() {
        Some(once) => run_once(call, once, buffers, (op, ty), deadline),
        None => {
            let arithmetic: Arithmetic<Reducer> = Arithmetic::BuiltIn(op, ty);
            run_steps(rt, call, key, buffers, &arithmetic, deadline)
        }
    }
}

/// Carries out a call of a function of the program, or what is left of it.
///
/// # Errors
/// Those of [`run`], and [`Error::Reduction`] on all ranks when it has failed on one.
pub(crate) fn run_by(
    rt: &Runtime,
    call: GroupCall<'_>,
    key: Key,
    buffers: Buffers<'static>,
    function: &OfTheCall<'_>,
    deadline: Deadline,
) -> Result<()> {
    if key.size == 1 {
        return run_alone(call, buffers);
    }
    run_steps(rt, call, key, buffers, &Arithmetic::User(function), deadline)
}

/// Of a group of one rank.
#[inline]
fn run_alone(call: GroupCall<'_>, buffers: Buffers<'_>) -> Result<()> {
    kernel::copy(buffers.output, buffers.input);
    call.finish();
    Ok(())
}

#[inline]
fn run_once(
    mut call: GroupCall<'_>,
    once: Once,
    buffers: Buffers<'_>,
    arithmetic: (Operation, DataType),
    deadline: Deadline,
) -> Result<()> {
    let arrival = call.step() + 1;
    if call.cursor() == 0 {
        once.publish(&mut call, arrival, 0, buffers.input);
        call.set_cursor(1);
    }
    once.prefetch(&call, arrival, buffers.input.len() as u64);
    call.await_all(deadline)?;
    once.collect(&call, arrival, arithmetic, buffers);
    call.finish();
    Ok(())
}

#[inline(never)]
fn run_steps<F: Function + Clone>(
    rt: &Runtime,
    mut call: GroupCall<'_>,
    key: Key,
    buffers: Buffers<'static>,
    arithmetic: &Arithmetic<F>,
    deadline: Deadline,
) -> Result<()> {
    let engine = Engine::of(rt);
    let mut tally = Tally::of_lines(call.arrived());
    let mut cursor = call.cursor();
    let elements = key.piece();
    loop {
        let (piece, step) = (cursor >> STEP_BITS, cursor & u64::from(u32::MAX));
        let first = piece * elements;
        if first >= key.count {
            call.finish();
            return Ok(());
        }
        let key = Key { count: elements.min(key.count - first), ..key };
        let plan = lock(&engine.lines).get(key, Key::plan)?;
        let part = buffers.part(first * key.element_bytes, key.bytes());
        let mut task = Task::new(plan, 0, 0, arithmetic.clone(), part);
        task.continue_at(step as usize);
        loop {
            match task.advance(&mut call, &mut tally) {
                Ok(None) => break,
                Ok(Some(_)) => {
                    call.set_cursor(piece << STEP_BITS | task.cursor() as u64);
                    // Any error but a timeout has ended the call.
                    call.await_all(deadline)?;
                }
                // On all members, at the same step.
                Err(error) => {
                    call.finish();
                    return Err(error);
                }
            }
        }
        cursor = (piece + 1) << STEP_BITS;
    }
}

#[cfg(test)]
#[path = "lines_tests.rs"]
mod tests;
