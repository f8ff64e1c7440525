//! Requests of a lane up to some time: whether its device may still use memory of them.

use super::lane::{Kind, LaneState, Request};
use crate::ids::NotificationId;
use crate::segment::Segment;
use std::ptr;
use std::sync::Arc;

/// Requests up to some time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begun {
    /// That were noted.
    requests: u64,
    /// Work requests.
    posted: u64,
}

impl LaneState {
    /// All requests that there have been. What tries a pair that is being made uses no memory.
    pub(super) fn begun(&self) -> Begun {
        Begun { requests: self.counters.begun, posted: self.posted() }
    }

    /// Those up to the last one that may use memory of a segment of this rank, which no thread
    /// finds any more.
    pub(super) fn begun_with(&self, segment: &Segment) -> Begun {
        let Some(key) = segment.prepared.local_key() else { return self.begun() };
        let notifies = |notify: &Option<(Arc<Segment>, NotificationId)>| {
            notify.as_ref().is_some_and(|(notified, _)| ptr::eq(&raw const **notified, segment))
        };
        let waits = |request: &Request| match request {
            Request::Put { data: Some((local, _)), .. } => local.key == Some(key),
            Request::Get { local, notify, .. } => local.key == Some(key) || notifies(notify),
            _ => false,
        };
        let is_noted = self.waiting.iter().any(waits)
            || self.sent.iter().any(|sent| match &sent.kind {
                Kind::Read(_, notify) => notifies(notify),
                _ => false,
            });
        let requests = if is_noted { self.counters.begun } else { 0 };
        Begun { requests, posted: self.direct.uses_below(key).min(self.posted()) }
    }

    /// How many work requests there have been.
    fn posted(&self) -> u64 {
        let tries = self.pairing.is_being_made();
        if tries { self.direct.freed() } else { self.direct.next() }
    }

    /// Whether the device may still use memory of these requests.
    pub(super) fn has_before(&self, begun: Begun) -> bool {
        self.counters.ended < begun.requests || self.direct.freed() < begun.posted
    }
}
