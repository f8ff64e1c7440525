//! What this rank owes a peer for its puts: acknowledgements, cumulative and as late as nobody minds.

use super::frame::Frame;
use crate::sync::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
struct State {
    /// The peer's present stream.
    stream: u32,
    /// Its puts that have been completed, and how many of them the peer has been told of.
    completed: u64,
    told: u64,
    /// One was refused: acknowledgements must not overtake the news of it, which goes by the peer's
    /// own stream.
    refused: bool,
}

/// The puts of a peer that this rank has completed.
#[derive(Debug, Default)]
pub(crate) struct Debt {
    /// Whether anything is owed, for a look without the lock.
    owing: AtomicBool,
    state: Mutex<State>,
}

impl Debt {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peer has opened a stream.
    pub(crate) fn begin(&self, stream: u32) {
        let mut state = self.state();
        *state = State { stream, ..State::default() };
        self.owing.store(false, Ordering::Relaxed);
    }

    /// Puts of a stream have been completed, some of them by refusing them.
    pub(crate) fn add(&self, stream: u32, puts: u64, refused: bool) {
        let mut state = self.state();
        if state.stream == stream {
            state.completed += puts;
            state.refused |= refused;
            self.owing.store(true, Ordering::Relaxed);
        }
    }

    /// The acknowledgement that is due, to travel on the peer's own stream if that is `stream`.
    pub(crate) fn pay(&self, stream: u32) -> Option<Frame> {
        let mut state = self.state();
        if state.stream == stream { self.take(&mut state) } else { None }
    }

    /// The acknowledgement that is due, to travel on a stream of this rank's own.
    pub(crate) fn pay_along(&self) -> Option<Frame> {
        if !self.owing.load(Ordering::Relaxed) {
            return None;
        }
        let mut state = self.state();
        if state.refused { None } else { self.take(&mut state) }
    }

    /// A stream of this rank's own has broken, and what it carried may be lost: all that was
    /// completed is owed again.
    pub(crate) fn tell_again(&self) {
        let mut state = self.state();
        state.told = 0;
        self.owing.store(state.completed > 0, Ordering::Relaxed);
    }

    fn take(&self, state: &mut State) -> Option<Frame> {
        self.owing.store(false, Ordering::Relaxed);
        if state.told == state.completed {
            return None;
        }
        state.told = state.completed;
        Some(Frame::Ack { stream: state.stream, puts: state.told })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgements_are_cumulative_and_never_overtake_a_refusal() {
        let debt = Debt::default();
        debt.begin(3);
        assert_eq!(debt.pay_along(), None);
        debt.add(3, 2, false);
        debt.add(2, 9, false);
        assert_eq!(debt.pay_along(), Some(Frame::Ack { stream: 3, puts: 2 }));
        assert_eq!((debt.pay_along(), debt.pay(3)), (None, None));
        debt.add(3, 1, true);
        assert_eq!(debt.pay_along(), None);
        assert_eq!(debt.pay(2), None);
        assert_eq!(debt.pay(3), Some(Frame::Ack { stream: 3, puts: 3 }));
        debt.tell_again();
        assert_eq!(debt.pay(3), Some(Frame::Ack { stream: 3, puts: 3 }));
        debt.begin(4);
        assert_eq!(debt.pay(4), None);
        debt.tell_again();
        assert_eq!((debt.pay_along(), debt.pay(4)), (None, None));
    }
}
