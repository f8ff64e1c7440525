//! Which lanes are carried by others, as lanes note it: see [`sharing`](super::sharing).

use crate::config::QUEUE_MAX;
use crate::ids::QueueId;

/// Which lane carries a lane.
#[derive(Debug, Default)]
pub(super) struct Route {
    /// The queue of that lane; none if it is the lane itself.
    pub(super) via: Option<QueueId>,
    /// How often requests that waited have moved.
    pub(super) moves: u64,
}

/// What the state of a lane knows of sharing.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// Whether another lane carries it.
    pub(super) elsewhere: bool,
    /// The queues whose lanes it carries beside its own, a bit for each.
    pub(super) guests: u16,
}

const _: () = assert!(QUEUE_MAX <= u16::BITS, "a bit for each queue");

impl Sharing {
    /// Whether its own requests are posted to its own pair.
    pub(super) fn is_at_home(&self) -> bool {
        !self.elsewhere
    }

    /// Queues whose requests may be under way here, of a lane of this queue.
    pub(super) fn queues(&self, own: QueueId) -> impl Iterator<Item = QueueId> + use<> {
        let own = if self.elsewhere { 0 } else { bit(own) };
        each(own | self.guests)
    }

    /// Those that fail with the pair of a lane of this queue, in words, if there are several.
    pub(super) fn in_words(&self, own: QueueId) -> Option<String> {
        (self.guests != 0).then(|| {
            let all: Vec<String> =
                each(bit(own) | self.guests).map(|queue| queue.to_string()).collect();
            format!("{} share its pair", all.join(" and "))
        })
    }
}

/// The bit of a queue; none of what is no queue.
pub(super) fn bit(queue: QueueId) -> u16 {
    1u16.checked_shl(queue.0.into()).unwrap_or(0)
}

/// The queues of these bits.
pub(super) fn each(bits: u16) -> impl Iterator<Item = QueueId> {
    (0..QUEUE_MAX as u8).map(QueueId).filter(move |queue| bits & bit(*queue) != 0)
}
