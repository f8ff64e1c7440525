//! Execution of the standard's all-reduces on lines and stages of the group. Its barriers use the
//! same lines, so ranks that call different collectives find out. Members of several nodes have
//! them too.
//!
//! A call that times out keeps only its cursor, see [`GroupCall::set_cursor`]. It is left at a step
//! that waits, and all steps before have happened.

use gaspi_core::{Deadline, GroupCall, NUMBER_SHIFT, Result, Runtime};

use crate::datatype::{DataType, Operation};
use crate::engine::Engine;
use crate::exec::buffers::{Arithmetic, Buffers};
use crate::exec::counters::Counters;
use crate::exec::task::Task;
use crate::kernel;
use crate::plan::single_phase::SinglePhase;
use crate::plan::standard::StandardKey;
use crate::request::Reducer;
use crate::user_reduction::{Function, OfTheCall};

/// Bits of the cursor for the step; those above hold the piece, and the number of the arrival that
/// is awaited, which signatures carry.
const STEP_BITS: u32 = u32::BITS;

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
    let mut counters = Counters::of_lines(call.arrived());
    let mut number = call.cursor() >> NUMBER_SHIFT;
    call.set_number(number);
    let mut cursor = call.cursor() & ((1 << NUMBER_SHIFT) - 1);
    let elements = key.piece();
    loop {
        let (piece, step) = (cursor >> STEP_BITS, cursor & u64::from(u32::MAX));
        let first = piece * elements;
        if first >= key.count {
            call.finish();
            return Ok(());
        }
        let key = StandardKey { count: elements.min(key.count - first), ..key };
        let plan = engine.standard_plans.lock().get(key, StandardKey::plan)?;
        let part = buffers.part(first * key.element_bytes, key.bytes());
        let mut task = Task::new(plan, 0, 0, arithmetic.clone(), part);
        task.continue_at(step as usize);
        loop {
            match task.advance(&mut call, &mut counters) {
                Ok(None) => break,
                Ok(Some(_)) => {
                    let cursor = piece << STEP_BITS | task.cursor() as u64;
                    call.set_cursor(number << NUMBER_SHIFT | cursor);
                    // Any error but a timeout has ended the call.
                    call.await_all(deadline)?;
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
        cursor = (piece + 1) << STEP_BITS;
    }
}
