//! How long a call may take, and the moment at which it has to end.

use crate::os::clock;
use std::time::{Duration, Instant};

/// How long a procedure may take (GASPI 17.1, 5.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timeout {
    /// One attempt; the call never waits (GASPI_TEST).
    Test,
    /// At most this many milliseconds.
    Millis(u64),
    /// No limit (GASPI_BLOCK).
    Block,
}

impl Timeout {
    /// The timeout as a point in time, counted from now.
    #[doc(hidden)]
    pub fn deadline(self) -> Deadline {
        match self {
            Timeout::Test => Deadline::Now,
            // A limit beyond what the clock can express is no limit.
            Timeout::Millis(ms) => clock::now()
                .checked_add(Duration::from_millis(ms))
                .map_or(Deadline::Never, Deadline::At),
            Timeout::Block => Deadline::Never,
        }
    }
}

impl From<Duration> for Timeout {
    fn from(duration: Duration) -> Timeout {
        Timeout::Millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }
}

/// The moment at which a call has to end. Made once when a call starts, handed to all it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deadline {
    /// The call may not wait at all.
    Now,
    /// The call ends at this time.
    At(Instant),
    /// The call has no limit.
    Never,
}

impl Deadline {
    /// Whether the time is over. `Now` is always over: ask after the first attempt.
    pub fn passed(self) -> bool {
        match self {
            Deadline::Now => true,
            Deadline::At(at) => clock::now() >= at,
            Deadline::Never => false,
        }
    }

    /// What is left, `None` without a limit.
    pub fn remaining(self) -> Option<Duration> {
        match self {
            Deadline::Now => Some(Duration::ZERO),
            Deadline::At(at) => Some(at.saturating_duration_since(clock::now())),
            Deadline::Never => None,
        }
    }

    /// The earlier of this deadline and `limit` from now.
    pub fn at_most(self, limit: Duration) -> Deadline {
        self.at_latest(clock::now() + limit)
    }

    /// The earlier of this deadline and a time.
    pub fn at_latest(self, limit: Instant) -> Deadline {
        match self {
            Deadline::Now => Deadline::Now,
            Deadline::At(at) => Deadline::At(at.min(limit)),
            Deadline::Never => Deadline::At(limit),
        }
    }
}
