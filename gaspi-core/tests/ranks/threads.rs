//! What tests do with threads, so that it also works in the virtual time of a twin.

use super::Nodes;
use gaspi_core::twin::Ticket;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) use gaspi_core::twin::now;

/// Lets others run.
pub(crate) fn pause() {
    if !gaspi_core::twin::pause() {
        std::thread::yield_now();
    }
}

/// Where so many threads meet, of whatever ranks.
#[derive(Debug)]
pub(crate) struct Barrier {
    size: usize,
    /// How many have come, and how often all had.
    met: Mutex<(usize, u64)>,
}

impl Barrier {
    pub(crate) fn new(size: usize) -> Barrier {
        Barrier { size, met: Mutex::default() }
    }

    pub(crate) fn wait(&self) {
        let lock = || self.met.lock().unwrap_or_else(PoisonError::into_inner);
        let round = {
            let mut met = lock();
            met.0 += 1;
            if met.0 == self.size {
                *met = (0, met.1 + 1);
                return;
            }
            met.1
        };
        while lock().1 == round {
            pause();
        }
    }
}

/// Threads of one rank, all of which have ended when [`scope`] returns.
pub(crate) struct Scope<'scope, 'env> {
    scope: &'scope std::thread::Scope<'scope, 'env>,
    running: Arc<AtomicUsize>,
}

/// One thread less is running.
struct Ending(Vec<Arc<AtomicUsize>>);

impl Drop for Ending {
    fn drop(&mut self) {
        for running in &self.0 {
            running.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Waits until none of these threads is running, but for their very end.
fn await_end(running: &AtomicUsize) {
    while running.load(Ordering::Acquire) > 0 && gaspi_core::twin::pause() {}
}

/// As [`std::thread::scope`].
pub(crate) fn scope<'env, T>(body: impl for<'scope> FnOnce(&Scope<'scope, 'env>) -> T) -> T {
    std::thread::scope(|scope| {
        let threads = Scope { scope, running: Arc::default() };
        let result = body(&threads);
        await_end(&threads.running);
        result
    })
}

/// A thread of a [`Scope`].
pub(crate) struct Thread<'scope, T> {
    handle: std::thread::ScopedJoinHandle<'scope, T>,
    running: Arc<AtomicUsize>,
}

impl<T> Thread<'_, T> {
    pub(crate) fn join(self) -> std::thread::Result<T> {
        await_end(&self.running);
        self.handle.join()
    }
}

impl<'scope> Scope<'scope, '_> {
    /// A thread of the calling one's rank.
    pub(crate) fn spawn<T: Send + 'scope>(
        &self,
        body: impl FnOnce() -> T + Send + 'scope,
    ) -> Thread<'scope, T> {
        let (nodes, ticket) = (Nodes::of_this_test(), Ticket::of_this_rank());
        let running = Arc::new(AtomicUsize::new(1));
        self.running.fetch_add(1, Ordering::AcqRel);
        let ending = Ending(vec![Arc::clone(&running), Arc::clone(&self.running)]);
        let handle = self.scope.spawn(move || {
            nodes.enter();
            let _entered = ticket.map(Ticket::enter);
            // Before it leaves the network: those who wait for it go on in their turn.
            let _ending = ending;
            body()
        });
        Thread { handle, running }
    }
}
