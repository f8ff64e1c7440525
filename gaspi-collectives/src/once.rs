//! All-reduces of one arrival, without walking their schedules: the same steps on the same memory,
//! for messages so small that the walk would take as long as the hand-over.
//!
//! The cursor stands where the executor would leave it, so that a call that timed out is continued
//! here or there alike.

use gaspi_core::{Deadline, GroupCall, Result};

use crate::allreduce_line::Line;
use crate::allreduce_staged::Staged;
use crate::datatype::{DataType, Operation};
use crate::executor::{Buffers, reduce_lines, reduce_staged};
use crate::kernel::{self, Source, Target};
use crate::port::CallPort;
use crate::schedule::{Allreduce, LINE_BYTES};

/// Bytes of each member that are asked for while their lines are awaited. What comes first hides
/// what comes later.
const PREFETCH_BYTES: u64 = 2048;

/// How the one arrival carries the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Once {
    /// In the line.
    Line,
    /// In the staging behind it.
    Staged,
}

impl Once {
    /// `None` if the schedule has more than one arrival.
    pub(crate) fn of(schedule: &Allreduce) -> Option<Once> {
        match schedule {
            Allreduce::Line(_) => Some(Once::Line),
            Allreduce::Staged(staged) if staged.has_one_chunk() => Some(Once::Staged),
            _ => None,
        }
    }

    /// The step of the schedule that waits.
    fn await_step(self) -> u64 {
        match self {
            Once::Line => Line::AWAIT,
            Once::Staged => Staged::AWAIT,
        }
    }
}

/// Runs a call, or what is left of it.
///
/// # Errors
/// Those of [`GroupCall::await_all`].
pub(crate) fn run(
    mut call: GroupCall<'_>,
    once: Once,
    buffers: Buffers<'_>,
    op: Operation,
    ty: DataType,
    deadline: Deadline,
) -> Result<()> {
    let bytes = buffers.input.len() as u64;
    debug_assert!(once == Once::Staged || bytes <= LINE_BYTES);
    if call.cursor() == 0 {
        match once {
            Once::Line => kernel::publish(&mut call, buffers.input),
            Once::Staged => {
                let stage = Target::of_peer(call.next_stage(call.me()));
                kernel::copy(stage.part(0, bytes), buffers.input);
                call.stage_used(bytes as usize);
                call.arrive(&[]);
            }
        }
        call.set_cursor(once.await_step());
    }
    let members = call.ranks().len() as u32;
    if once == Once::Staged {
        // Until they have been awaited, what is arriving is the next.
        for member in (0..call.ranks().len()).filter(|member| *member != call.me()) {
            let stage = Target::of_peer(call.next_stage(member)).source();
            kernel::prefetch(stage.part(0, bytes.min(PREFETCH_BYTES)));
        }
    }
    call.await_all(deadline)?;
    let port = CallPort::new(call);
    match once {
        Once::Line => reduce_lines(&port, buffers.output, 0..members, op, ty),
        Once::Staged => {
            let source = |member| -> Source<'_> { port.last_stage_of(member).part(0, bytes) };
            reduce_staged(buffers.output, 0..members, op, ty, source);
        }
    }
    port.finish();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Schedule, Shape, Step};

    #[test]
    fn the_cursor_stands_where_the_executor_would_leave_it() {
        for count in [1, 6, 7, 255, 2048, 2049, 100_000] {
            let shape = Shape { me: 1, size: 3, count, element_bytes: 8, stage_bytes: 16384 };
            let schedule = Allreduce::choose(shape);
            let steps = (0..20).map(|index| schedule.step(index));
            let arrivals = steps.filter(|step| matches!(step, Step::Arrive(_))).count();
            let once = Once::of(&schedule);
            assert_eq!(once.is_some(), arrivals == 1, "{count}");
            if let Some(once) = once {
                assert_eq!(schedule.step(once.await_step()), Step::Await);
                assert_eq!(once == Once::Line, count * 8 <= LINE_BYTES);
            }
        }
    }
}
