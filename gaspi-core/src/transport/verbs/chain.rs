//! Requests that are handed to the device together, as one chain.

use super::Verbs;
use super::lane::{Lane, LaneState};
use super::queue_pair::QueuePair;
use crate::ids::{QueueId, Rank};
use crate::sync::Ordering;
use libibverbs_sys as sys;
use std::mem::MaybeUninit;
use std::ptr;

/// So many requests of a chain at most.
pub(super) const CHAIN_MAX: usize = 16;

/// Requests that are posted together. It lies in a box, since they point to each other.
pub(super) struct Chain {
    works: [MaybeUninit<sys::ibv_send_wr>; CHAIN_MAX],
    parts: [MaybeUninit<sys::ibv_sge>; CHAIN_MAX],
    len: usize,
    is_open: bool,
}

// SAFETY: what it points to is its own part, or memory of requests, which any thread may post.
unsafe impl Send for Chain {}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain").field("len", &self.len).field("is_open", &self.is_open).finish()
    }
}

impl Chain {
    fn new() -> Box<Chain> {
        let works = [const { MaybeUninit::uninit() }; CHAIN_MAX];
        let parts = [const { MaybeUninit::uninit() }; CHAIN_MAX];
        Box::new(Chain { works, parts, len: 0, is_open: false })
    }

    /// Adds a request, which has a piece of memory or none.
    pub(super) fn add(&mut self, mut work: sys::ibv_send_wr, part: sys::ibv_sge) {
        let at = self.len;
        work.sg_list = self.parts[at].write(part);
        let work: *mut _ = self.works[at].write(work);
        if let Some(before) = at.checked_sub(1) {
            // SAFETY: all before this one have been written.
            unsafe { self.works[before].assume_init_mut() }.next = work;
        }
        self.len += 1;
    }

    fn is_full(&self) -> bool {
        self.len == CHAIN_MAX
    }
}

/// What a lane puts together before it is posted.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    /// The bytes of the last message.
    pub(super) message: Vec<u8>,
    chain: Option<Box<Chain>>,
}

impl Assembly {
    /// What is posted from now on is handed over together.
    pub(super) fn open_chain(&mut self) {
        self.chain.get_or_insert_with(Chain::new).is_open = true;
    }

    /// The chain to which the next request is added; `None` if that is posted at once.
    pub(super) fn chain(&mut self) -> Option<&mut Chain> {
        self.chain.as_deref_mut().filter(|chain| chain.is_open)
    }

    /// Posts the requests of the chain where there is no room for more, or if its memory is needed.
    ///
    /// # Errors
    /// What the device says.
    pub(super) fn go_on(&mut self, pair: &QueuePair, is_needed: bool) -> Result<(), String> {
        match self.chain() {
            Some(chain) if is_needed || chain.is_full() => chain.hand_over(pair),
            _ => Ok(()),
        }
    }

    /// Posts what was added. The next request is posted at once again.
    ///
    /// # Errors
    /// What the device says: the pair has to be taken down.
    pub(super) fn close_chain(&mut self, pair: Option<&QueuePair>) -> Result<(), String> {
        let Some(chain) = self.chain() else { return Ok(()) };
        chain.is_open = false;
        match pair {
            Some(pair) => chain.hand_over(pair),
            None => {
                chain.len = 0;
                Ok(())
            }
        }
    }
}

impl Chain {
    fn hand_over(&mut self, pair: &QueuePair) -> Result<(), String> {
        let Some(last) = std::mem::take(&mut self.len).checked_sub(1) else { return Ok(()) };
        // SAFETY: all up to the last one have been written.
        unsafe { self.works[last].assume_init_mut() }.next = ptr::null_mut();
        // SAFETY: they point to each other and to pieces in this box; the memory of each stays until
        // it has ended, by whoever has added it.
        unsafe { pair.post_chain(self.works[0].as_mut_ptr()) }
    }
}

impl LaneState {
    /// Posts what waits, as far as there is room. A request that does not fit the send queue as a
    /// whole is posted in parts, the first of which wait for nothing.
    ///
    /// # Errors
    /// What the device says: the pair has to be taken down.
    pub(super) fn pump(&mut self) -> Result<(), String> {
        if self.waiting.len() > 1 {
            self.assembly.open_chain();
        }
        let posted = self.post_waiting();
        let handed_over = self.assembly.close_chain(self.pair.as_ref());
        posted.and(handed_over)
    }
}

impl Lane {
    /// Whether what waits is posted by the end of a list.
    pub(super) fn gathers(&self, state: &LaneState) -> bool {
        self.lists.load(Ordering::Relaxed) > 0 && state.waiting.len() < CHAIN_MAX
    }
}

/// A list whose elements are being pushed. Its end posts them.
pub(crate) struct ListInHand<'a> {
    verbs: Verbs<'a>,
    own: &'a Lane,
}

impl Drop for ListInHand<'_> {
    fn drop(&mut self) {
        self.own.lists.fetch_sub(1, Ordering::Relaxed);
        let (lane, state, route) = self.verbs.carrier_of(self.own);
        drop(route);
        if state.pairing.is_up() {
            self.verbs.pump(lane, state);
        }
    }
}

impl<'a> Verbs<'a> {
    /// What is pushed to this lane until the value is dropped is posted together.
    pub(crate) fn gather(self, queue: QueueId, peer: Rank) -> ListInHand<'a> {
        let own = self.table.lane(queue, peer);
        own.lists.fetch_add(1, Ordering::Relaxed);
        ListInHand { verbs: self, own }
    }
}
