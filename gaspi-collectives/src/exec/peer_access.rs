//! How this rank gets at memory of another member: mapped, or across processes.

use gaspi_core::{Channel, Location, PeerSlice, Reached, Result};

/// Memory of another member as this rank gets at it.
#[derive(Debug)]
pub(super) struct PeerAccess {
    address: u64,
    reached: Reached,
}

impl PeerAccess {
    /// Opens `bytes` at `location` of a member.
    ///
    /// # Errors
    /// [`gaspi_core::Error::Refused`]: it cannot be reached.
    pub(super) fn open(
        channel: &Channel,
        member: usize,
        location: Location,
        bytes: u64,
    ) -> Result<PeerAccess> {
        let address = match location {
            Location::Address(address) | Location::Unmapped { address, .. } => address,
            Location::Segment { .. } => 0,
        };
        // Memory of no bytes is never used, and this rank's own is used directly.
        if bytes == 0 || member == channel.me() {
            return Ok(PeerAccess { address, reached: Reached::CrossMemory });
        }
        let reached = channel.reach(member, location, bytes).ok_or_else(|| {
            let reason =
                format!("its {bytes} bytes cannot be reached; has it deleted the segment?");
            channel.refused(member, reason)
        })?;
        Ok(PeerAccess { address, reached })
    }

    /// The memory, if it is mapped.
    pub(super) fn slice(&self) -> Option<PeerSlice<'_>> {
        self.reached.slice()
    }

    /// The address of a byte in the process of the member.
    pub(super) fn address(&self, offset: u64) -> u64 {
        self.address + offset
    }
}
