//! How this rank gets at memory of another member: mapped, or across processes.

use gaspi_core::sync::arrival_slot::PAYLOAD_WORDS as WORDS;
use gaspi_core::{Channel, Location, PeerSlice, Reached, Result};

use super::buffer_location::BufferLocation;

/// The line of a member's first arrival.
type Line = [u64; WORDS];

/// The memory of the members of a node, as their lines tell of it. An operation that is carried out
/// again finds most often what it has found before.
#[derive(Debug, Default)]
pub(super) struct Accesses {
    /// By member, its input and its output.
    members: Vec<[PeerAccess; 2]>,
    /// By member, what its line has told.
    lines: Vec<Line>,
    /// Some of it is in segments of the program, or private.
    passes: bool,
    /// This operation has found them.
    are_open: bool,
}

impl Accesses {
    pub(super) fn are_open(&self) -> bool {
        self.are_open
    }

    /// Adds the next member, with the line that has told of it.
    pub(super) fn add(&mut self, member: [PeerAccess; 2], line: Line) {
        self.members.push(member);
        self.lines.push(line);
        self.passes |= !BufferLocation::of_words(line).stay();
        self.are_open = true;
    }

    /// The operation is begun anew: its members have not told of their memory. What is not of
    /// arenas is forgotten, so that it is not kept mapped.
    pub(super) fn close(&mut self) {
        self.are_open = false;
        if self.passes {
            self.forget();
        }
    }

    /// Opens what was there before, if the members tell of the same.
    pub(super) fn open_again(&mut self, line: impl Fn(usize) -> Line) -> bool {
        let mut lines = self.lines.iter().enumerate();
        self.are_open = !self.lines.is_empty() && lines.all(|(at, known)| *known == line(at));
        if !self.are_open {
            self.forget();
        }
        self.are_open
    }

    pub(super) fn forget(&mut self) {
        self.members.clear();
        self.lines.clear();
        self.passes = false;
        self.are_open = false;
    }

    /// The input (0) or the output (1) of a member.
    pub(super) fn access(&self, member: usize, buffer: usize) -> &PeerAccess {
        &self.members[member][buffer]
    }
}

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
