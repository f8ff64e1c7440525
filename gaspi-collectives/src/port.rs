//! The executor's port to gaspi-core.

use gaspi_core::{Deadline, GroupCall, Rank, Result};

use crate::executor::Port;
use crate::kernel::{self, Source, Target};

/// A call on a group.
pub(crate) struct CallPort<'a> {
    call: GroupCall<'a>,
}

impl<'a> CallPort<'a> {
    pub(crate) fn new(call: GroupCall<'a>) -> CallPort<'a> {
        CallPort { call }
    }

    /// The staging of a member that the arrival awaited last has published.
    pub(crate) fn last_stage_of(&self, member: u32) -> Source<'_> {
        Target::of_peer(self.call.last_stage(member as usize)).source()
    }

    /// The call has ended.
    pub(crate) fn finish(self) {
        self.call.finish();
    }
}

impl Port for CallPort<'_> {
    fn me(&self) -> u32 {
        self.call.me() as u32
    }

    fn size(&self) -> u32 {
        self.call.ranks().len() as u32
    }

    fn rank(&self, member: u32) -> Rank {
        self.call.ranks()[member as usize]
    }

    fn cursor(&self) -> u64 {
        self.call.cursor()
    }

    fn set_cursor(&mut self, step: u64) {
        self.call.set_cursor(step);
    }

    fn arrive(&mut self, payload: Source<'_>) {
        kernel::publish(&mut self.call, payload);
    }

    fn await_all(&mut self, deadline: Deadline) -> Result<()> {
        self.call.await_all(deadline)
    }

    fn line(&self, member: u32, to: Target<'_>) {
        kernel::collect(&self.call, member, to);
    }

    fn stage_used(&mut self, bytes: u64) {
        self.call.stage_used(bytes as usize);
    }

    fn next_stage(&self, member: u32) -> Target<'_> {
        Target::of_peer(self.call.next_stage(member as usize))
    }

    fn last_stage(&self, member: u32) -> Source<'_> {
        self.last_stage_of(member)
    }
}
