//! Completion queues and shared receive queues.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::pair::{PeerMark, Receive};

/// An entry of a completion queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Completion {
    pub(crate) id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) length: u32,
    pub(crate) immediate: u32,
    pub(crate) pair: u32,
    pub(crate) peer: u32,
    pub(crate) flags: u32,
    /// Slots of the send queue that polling it frees.
    pub(crate) slots: u32,
    pub(crate) solicited: bool,
    pub(crate) own_mark: u64,
    pub(crate) peer_mark: Option<PeerMark>,
}

/// What the next completion is to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    Not,
    Solicited,
    All,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) card: u32,
    capacity: usize,
    entries: VecDeque<Completion>,
    armed: Armed,
    /// An entry was lost: the queue is of no use any more.
    pub(crate) overrun: bool,
    /// How many entries there are, for looks without a lock.
    ready: Arc<AtomicU32>,
}

/// What adding an entry leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Added {
    Quietly,
    WithEvent,
    Overrun,
}

impl Queue {
    pub(crate) fn new(card: u32, capacity: usize, ready: Arc<AtomicU32>) -> Queue {
        let (entries, armed) = (VecDeque::new(), Armed::Not);
        Queue { card, capacity, entries, armed, overrun: false, ready }
    }

    pub(crate) fn add(&mut self, completion: Completion) -> Added {
        if self.overrun {
            return Added::Quietly;
        }
        if self.entries.len() == self.capacity {
            self.overrun = true;
            // A look without a lock must come for the error.
            self.ready.store(1, Ordering::Release);
            return Added::Overrun;
        }
        let wakes = match self.armed {
            Armed::Not => false,
            Armed::Solicited => completion.solicited || completion.status != 0,
            Armed::All => true,
        };
        self.entries.push_back(completion);
        self.tell();
        if wakes {
            self.armed = Armed::Not;
            return Added::WithEvent;
        }
        Added::Quietly
    }

    pub(crate) fn take(&mut self) -> Option<Completion> {
        let taken = self.entries.pop_front()?;
        self.tell();
        Some(taken)
    }

    /// Asks for an event with the next completion. What is in the queue already gives none.
    pub(crate) fn arm(&mut self, solicited_only: bool) {
        self.armed = match (self.armed, solicited_only) {
            (Armed::All, _) | (_, false) => Armed::All,
            _ => Armed::Solicited,
        };
    }

    /// Drops the entries of a pair that is gone.
    pub(crate) fn forget(&mut self, pair: u32) {
        self.entries.retain(|completion| completion.pair != pair);
        self.tell();
    }

    /// A new capacity, unless there are more entries.
    pub(crate) fn resize(&mut self, capacity: usize) -> bool {
        let fits = self.entries.len() <= capacity;
        if fits {
            self.capacity = capacity;
        }
        fits
    }

    fn tell(&self) {
        // Release: pairs with the Acquire of a look, which then takes the lock.
        self.ready.store(self.entries.len() as u32 + u32::from(self.overrun), Ordering::Release);
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) card: u32,
    pub(crate) domain: u32,
    pub(crate) capacity: usize,
    pub(crate) pieces: u32,
    pub(crate) receives: VecDeque<Receive>,
    /// An event comes when fewer receives than this are left; 0: none.
    pub(crate) limit: u32,
}

impl Shared {
    /// Takes a receive, and tells whether the limit is reached by that. As soft-RoCE has it,
    /// setting a limit that is not kept already tells nothing.
    pub(crate) fn take(&mut self) -> Option<(Receive, bool)> {
        let taken = self.receives.pop_front()?;
        let reached = (self.receives.len() as u64) < u64::from(self.limit);
        if reached {
            self.limit = 0;
        }
        Some((taken, reached))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(capacity: usize) -> (Queue, Arc<AtomicU32>) {
        let ready = Arc::new(AtomicU32::new(0));
        (Queue::new(0, capacity, ready.clone()), ready)
    }

    fn solicited() -> Completion {
        Completion { solicited: true, ..Completion::default() }
    }

    #[test]
    fn a_queue_that_is_armed_for_solicited_messages_sleeps_through_others() {
        let (mut queue, _) = queue(9);
        queue.add(solicited());
        queue.arm(true);
        assert_eq!(queue.add(Completion::default()), Added::Quietly);
        assert_eq!(queue.add(solicited()), Added::WithEvent);
        assert_eq!(queue.add(solicited()), Added::Quietly);
        queue.arm(true);
        assert_eq!(queue.add(Completion { status: 5, ..Completion::default() }), Added::WithEvent);
        queue.arm(false);
        queue.arm(true);
        assert_eq!(queue.add(Completion::default()), Added::WithEvent);
    }

    #[test]
    fn one_entry_too_many_ends_the_queue() {
        let (mut queue, ready) = queue(1);
        assert_eq!(queue.add(Completion::default()), Added::Quietly);
        assert_eq!(queue.add(Completion::default()), Added::Overrun);
        assert!(queue.overrun);
        queue.take();
        assert_eq!(ready.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_limit_tells_once() {
        let receive = Receive { id: 0, pieces: Vec::new() };
        let receives = vec![receive; 4].into();
        let mut shared = Shared { card: 0, domain: 0, capacity: 4, pieces: 1, receives, limit: 3 };
        let told: Vec<_> = std::iter::from_fn(|| shared.take().map(|(_, told)| told)).collect();
        assert_eq!(told, [false, true, false, false]);
    }
}
