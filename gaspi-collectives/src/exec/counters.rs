//! How far messages and arrivals are.

/// How far messages and lines are: what this rank has done on its substrate.
#[derive(Debug)]
pub(crate) struct Counters {
    /// Messages sent to each member, and how many of them it is known to have taken.
    pub(super) sent: Vec<u64>,
    pub(super) room: Vec<u64>,
    /// Messages taken from each member.
    pub(super) taken: Vec<u64>,
    /// Lines published.
    pub(super) arrivals: u64,
    /// Notices that members have told of which none says that it has failed.
    pub(super) notices: u64,
}

impl Counters {
    pub(crate) fn new(members: usize) -> Counters {
        let zeroes = || vec![0; members];
        Counters { sent: zeroes(), room: zeroes(), taken: zeroes(), arrivals: 0, notices: 0 }
    }

    /// That of a substrate of nothing but lines, of which so many have been published.
    pub(crate) fn of_lines(arrivals: u64) -> Counters {
        Counters { arrivals, ..Counters::new(0) }
    }

    /// The next arrival.
    #[inline]
    pub(crate) fn arrive(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }
}
