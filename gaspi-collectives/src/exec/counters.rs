//! Counters of messages and arrivals.

/// Messages and arrivals of this rank on its substrate.
#[derive(Debug)]
pub(crate) struct Counters {
    /// Messages sent to each member, and the number that it is known to have taken.
    pub(super) sent: Vec<u64>,
    pub(super) room: Vec<u64>,
    /// Messages taken from each member.
    pub(super) taken: Vec<u64>,
    /// Lines published.
    pub(super) arrivals: u64,
    /// Notices that have been read; none of them reports a failure.
    pub(super) notices: u64,
}

impl Counters {
    pub(crate) fn new(members: usize) -> Counters {
        let zeroes = || vec![0; members];
        Counters { sent: zeroes(), room: zeroes(), taken: zeroes(), arrivals: 0, notices: 0 }
    }

    /// Counters of a group, whose steps have no messages, after so many arrivals.
    pub(crate) fn of_lines(arrivals: u64) -> Counters {
        Counters { arrivals, ..Counters::new(0) }
    }

    /// Chunks are counted anew behind each arrival.
    pub(crate) fn begin_window(&mut self, members: usize) {
        for counted in [&mut self.sent, &mut self.taken] {
            counted.clear();
            counted.resize(members, 0);
        }
    }

    /// The number of the next chunk of a member.
    pub(crate) fn next_chunk(&self, from: usize) -> u64 {
        self.taken[from]
    }

    /// The next arrival.
    #[inline]
    pub(crate) fn arrive(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }
}
