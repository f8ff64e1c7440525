//! Dissemination, by messages, n members, any number of them: ceil(log2 n) rounds, those of
//! gaspi-core's schedule of that name.
//!
//! - barrier: in round k each member sends an empty message to the member 2^k behind it, and takes
//!   one from the member 2^k before it.
//! - all-gather: in round k each has the 2^k blocks up to its own, sends them to the member 2^k
//!   behind it, and gets as many from the member 2^k before it, the last time only those that are
//!   missing. Bytes sent by each: (n - 1)/n of the output.
//!
//! Blocks go straight to their place in the output. They go round its end as two ranges, the same
//! ones for sender and receiver.

use gaspi_core::schedule::Pattern;

use super::program::{Program, Team};
use super::told;
use crate::collective::Collective;
use crate::steps::{Shape, Step};

pub(super) fn steps(collective: Collective, shape: &Shape) -> Option<Vec<Step>> {
    let mut program = Program::new(shape)?;
    match collective {
        Collective::Barrier => {
            told::barrier(&mut program, &Team::all(shape), Pattern::Dissemination)
        }
        Collective::Allgather => told::allgather(&mut program, shape, Pattern::Dissemination),
        _ => return None,
    }
    Some(program.into_steps())
}
