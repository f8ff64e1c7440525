//! Requests that are handed to the device together, as one chain.

use libibverbs_sys as sys;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ptr;

/// So many requests of a chain at most.
pub(super) const CHAIN_MAX: usize = 16;

/// Requests that are posted together. It lies in a box, since they point to each other.
pub(super) struct Chain {
    works: [MaybeUninit<sys::ibv_send_wr>; CHAIN_MAX],
    parts: [MaybeUninit<sys::ibv_sge>; CHAIN_MAX],
    len: usize,
}

thread_local! {
    /// One that this thread has used: there need not be one for each lane, nor a new one each time.
    static SPARE: Cell<Option<Box<Chain>>> = const { Cell::new(None) };
}

// SAFETY: what it points to is its own part, or memory of requests, which any thread may post.
unsafe impl Send for Chain {}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Chain {
    fn new() -> Box<Chain> {
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        spare.unwrap_or_else(|| {
            let works = [const { MaybeUninit::uninit() }; CHAIN_MAX];
            let parts = [const { MaybeUninit::uninit() }; CHAIN_MAX];
            Box::new(Chain { works, parts, len: 0 })
        })
    }

    /// What was handed over is not needed any more.
    pub(super) fn give_back(self: Box<Chain>) {
        // A thread that ends has no place for it.
        let _ = SPARE.try_with(|spare| spare.set(Some(self)));
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

    /// The first of the requests, which stay until others are added.
    pub(super) fn take(&mut self) -> Option<*mut sys::ibv_send_wr> {
        let last = std::mem::take(&mut self.len).checked_sub(1)?;
        // SAFETY: all up to the last one have been written.
        unsafe { self.works[last].assume_init_mut() }.next = ptr::null_mut();
        Some(self.works[0].as_mut_ptr())
    }
}

/// What a lane puts together before it is posted.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    /// The bytes of the last message.
    pub(super) message: Vec<u8>,
    /// While one is open.
    chain: Option<Box<Chain>>,
}

impl Assembly {
    /// What is posted from now on is handed over together.
    pub(super) fn open_chain(&mut self) {
        self.chain.get_or_insert_with(Chain::new);
    }

    /// The chain to which the next request is added; `None` if that is posted at once.
    pub(super) fn chain(&mut self) -> Option<&mut Chain> {
        self.chain.as_deref_mut()
    }

    /// The first of the requests that are to be posted now: where there is no room for more, or if
    /// their memory is needed.
    pub(super) fn due(&mut self, is_needed: bool) -> Option<*mut sys::ibv_send_wr> {
        self.chain().filter(|chain| is_needed || chain.is_full())?.take()
    }

    /// The chain, if one is open. The next request is posted at once again.
    pub(super) fn close_chain(&mut self) -> Option<Box<Chain>> {
        self.chain.take()
    }
}
