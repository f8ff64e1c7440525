//! Execution of the standard's all-reduces on lines, stages and chunks of the group. Its barriers
//! use the same lines, so ranks that call different collectives find out. Members of several nodes
//! have them too.
//!
//! A call that times out keeps only its cursor, see [`GroupCall::set_cursor`]. It is left at a step
//! that waits, and all steps before have happened.

use gaspi_core::{Deadline, GroupCall, NUMBER_SHIFT, Result, Runtime};

use crate::datatype::{DataType, Operation};
use crate::engine::Engine;
use crate::exec::buffers::{Arithmetic, Buffers};
use crate::exec::task::{Blocked, Task};
use crate::kernel;
use crate::plan::single_phase::SinglePhase;
use crate::plan::standard::StandardKey;
use crate::request::Reducer;
use crate::user_reduction::{Function, OfTheCall};

/// How far a call has come, in the bits below the number of the arrival that is awaited, which
/// signatures carry.
///
/// | bits | what |
/// |---|---|
/// | 0..20 | the step of the piece |
/// | 20..37 | 1 + the rank on which the function has failed, 0 if it has on none |
/// | 37..60 | the piece |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cursor {
    piece: u64,
    step: usize,
    failed: u64,
}

const FAILED_SHIFT: u32 = 20;
const PIECE_SHIFT: u32 = 37;

impl Cursor {
    fn of(bits: u64) -> Cursor {
        let part = |first: u32, end: u32| (bits >> first) & ((1 << (end - first)) - 1);
        Cursor {
            piece: part(PIECE_SHIFT, NUMBER_SHIFT),
            step: part(0, FAILED_SHIFT) as usize,
            failed: part(FAILED_SHIFT, PIECE_SHIFT),
        }
    }

    fn bits(self) -> u64 {
        let Cursor { piece, step, failed } = self;
        debug_assert_eq!(Cursor::of(Self::pack(piece, step, failed)), self, "it has room");
        Self::pack(piece, step, failed)
    }

    fn pack(piece: u64, step: usize, failed: u64) -> u64 {
        step as u64 | failed << FAILED_SHIFT | piece << PIECE_SHIFT
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
    key: StandardKey,
    buffers: Buffers<'static>,
    (op, ty): (Operation, DataType),
    deadline: Deadline,
) -> Result<()> {
    if key.size == 1 {
        return run_alone(call, buffers);
    }
    match key.single_phase() {
        Some(single_phase) => run_single_phase(call, single_phase, buffers, (op, ty), deadline),
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
    key: StandardKey,
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
fn run_single_phase(
    mut call: GroupCall<'_>,
    single_phase: SinglePhase,
    buffers: Buffers<'_>,
    arithmetic: (Operation, DataType),
    deadline: Deadline,
) -> Result<()> {
    let arrival = call.step() + 1;
    if call.cursor() == 0 {
        single_phase.publish(&mut call, arrival, 0, buffers.input);
        call.set_cursor(1);
    }
    single_phase.prefetch(&call, arrival, buffers.input.len() as u64);
    call.await_all(deadline)?;
    single_phase.collect(&call, arrival, arithmetic, buffers);
    call.check_read()?;
    call.finish();
    Ok(())
}

#[inline(never)]
fn run_steps<F: Function + Clone>(
    rt: &Runtime,
    mut call: GroupCall<'_>,
    key: StandardKey,
    buffers: Buffers<'static>,
    arithmetic: &Arithmetic<F>,
    deadline: Deadline,
) -> Result<()> {
    let engine = Engine::of(rt);
    let mut number = call.cursor() >> NUMBER_SHIFT;
    call.set_number(number);
    let mut cursor = Cursor::of(call.cursor());
    let elements = key.piece();
    loop {
        let first = cursor.piece * elements;
        if first >= key.count {
            call.check_read()?;
            call.finish();
            return Ok(());
        }
        let key = StandardKey { count: elements.min(key.count - first), ..key };
        let plan = engine.standard_plans.lock().get(key, StandardKey::plan)?;
        let has_chunks = plan.is_of_messages();
        let part = buffers.part(first * key.element_bytes, key.bytes());
        let mut task = Task::new(plan, 0, 0, arithmetic.clone(), part);
        task.continue_at(cursor.step);
        task.continue_failed(cursor.failed);
        let mut counters = task.counters_of(&call);
        loop {
            let advanced = task.advance(&mut call, &mut counters);
            if has_chunks && !matches!(advanced, Ok(Some(_))) {
                call.end_chunks();
            }
            match advanced {
                Ok(None) => break,
                Ok(Some(blocked)) => {
                    cursor = Cursor { step: task.cursor(), failed: task.failed(), ..cursor };
                    call.set_cursor(number << NUMBER_SHIFT | cursor.bits());
                    // Any error but a timeout has ended the call.
                    if let Blocked::Message(from) = blocked {
                        call.await_chunk(from, counters.next_chunk(from) as usize, deadline)?;
                        continue;
                    }
                    call.await_all(deadline)?;
                    if has_chunks {
                        counters.begin_window(key.size as usize);
                    }
                    number = (number + 1) % (1 << (u64::BITS - NUMBER_SHIFT));
                    call.set_number(number);
                }
                // On all members, at the same step.
                Err(error) => {
                    call.finish();
                    return Err(error);
                }
            }
        }
        cursor = Cursor { piece: cursor.piece + 1, step: 0, failed: 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_holds_the_largest_of_each() {
        // 32 GiB in pieces of at least 8 KiB, and the last rank there can be.
        let largest = Cursor { piece: 1 << 22, step: (1 << 20) - 1, failed: 1 << 16 };
        for cursor in [largest, Cursor { piece: 1, step: 2, failed: 3 }] {
            assert!(cursor.bits() < 1 << NUMBER_SHIFT);
            assert_eq!(Cursor::of(cursor.bits()), cursor);
        }
        assert_eq!(Cursor::of(0), Cursor { piece: 0, step: 0, failed: 0 });
    }
}
