//! The interfaces of this host, asked for once for all connections that are made at a time.

use crate::os::interfaces::{self, Interface};
use std::time::{Duration, Instant};

/// How long an answer is good for.
const FRESH: Duration = Duration::from_millis(100);

/// What the kernel has told last.
#[derive(Debug, Default)]
pub(super) struct OwnInterfaces {
    known: Vec<Interface>,
    since: Option<Instant>,
}

impl OwnInterfaces {
    /// The interfaces.
    pub(super) fn list(&mut self, now: Instant) -> &[Interface] {
        let is_fresh = self.since.is_some_and(|since| now.duration_since(since) < FRESH);
        if !is_fresh {
            (self.known, self.since) = (interfaces::list(), Some(now));
        }
        &self.known
    }
}
