//! Messages of steps on a group: chunks of words, of which the first one tells of a failed
//! reduction as the head of a message does. A window, between two arrivals, has room for all that
//! its steps send, so sending never waits.

use gaspi_core::{Error, GroupCall, Result};

use super::counters::Counters;
use super::substrate::Substrate;
use super::task::{Blocked, Stepped, Task};
use crate::kernel::{self, Source, Target};
use crate::steps::{Span, Step};
use crate::user_reduction::Function;

impl<F: Function> Task<F> {
    /// Counters of a group's call, which continues behind the steps that have been done.
    pub(crate) fn counters_of(&self, call: &GroupCall<'_>) -> Counters {
        let mut counters = Counters::of_lines(call.arrived());
        if !self.plan.is_of_messages() {
            return counters;
        }
        let members = call.ranks().len();
        counters.begin_window(members);
        for step in &self.plan.steps[..self.cursor()] {
            match *step {
                Step::AwaitAll => counters.begin_window(members),
                Step::Send { to, .. } => counters.sent[to as usize] += 1,
                Step::Receive { from, .. } | Step::ReceiveReduce { from, .. } => {
                    counters.taken[from as usize] += 1;
                }
                _ => {}
            }
        }
        counters
    }

    pub(super) fn send_chunk<C: Substrate>(
        &self,
        on: &C,
        counters: &mut Counters,
        to: usize,
        src: Span,
    ) {
        let mut words = vec![0; 1 + (src.bytes as usize).div_ceil(size_of::<u64>())];
        words[0] = self.failed.get();
        let data: &mut [u8] = bytemuck::cast_slice_mut(&mut words[1..]);
        let data = Target::of(&mut data[..src.bytes as usize]);
        kernel::copy(data, self.source(on, counters, src));
        on.send_chunk(to, counters.sent[to], words);
        counters.sent[to] += 1;
    }

    pub(super) fn receive_chunk<C: Substrate>(
        &self,
        on: &C,
        counters: &mut Counters,
        from: usize,
        dst: Span,
        with: Option<(Span, bool)>,
    ) -> Result<Stepped> {
        let Some(words) = on.take_chunk(from, counters.taken[from]) else {
            return Ok(Stepped::Blocked(Blocked::Message(from)));
        };
        let bytes = dst.bytes as usize;
        if words.len() != 1 + bytes.div_ceil(size_of::<u64>()) {
            let (rank, found) = (on.ranks()[from], size_of_val(&*words));
            let reason = format!("it sends {found} bytes for a chunk of {bytes}");
            return Err(Error::Refused { rank, reason });
        }
        self.hear_of_failure(words[0]);
        let data: &[u8] = bytemuck::cast_slice(&words[1..]);
        let stepped = self.combine_message(on, counters, Source::of(&data[..bytes]), dst, with);
        counters.taken[from] += 1;
        Ok(stepped)
    }
}
