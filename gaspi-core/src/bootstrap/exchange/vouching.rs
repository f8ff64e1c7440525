//! What libmunge is asked, each question on a thread of its own: its daemon may be stopped, and no
//! call waits for it beyond its timeout.
//!
//! Invariant: no more than [`ASKED_MAX`] threads wait for munge, however often a start is tried.

use crate::error::Error;
use crate::os::munge::Munge;
use crate::os::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::Duration;

/// How often to look whether munge has answered.
pub(super) const LOOK: Duration = Duration::from_millis(2);
/// Questions that munge has not answered.
const ASKED_MAX: usize = 64;
/// The thread calls little.
const STACK_BYTES: usize = 256 * 1024;

static ASKED: AtomicUsize = AtomicUsize::new(0);

/// Something that is known, or that munge has been asked for.
#[derive(Debug)]
pub(super) enum Asked<T> {
    /// Until it is taken.
    Known(Option<Result<T, String>>),
    Awaited(Receiver<Result<T, String>>),
}

impl<T: Send + 'static> Asked<T> {
    pub(super) fn known(answer: Result<T, String>) -> Asked<T> {
        Asked::Known(Some(answer))
    }

    pub(super) fn of(
        munge: &Arc<Munge>,
        question: impl FnOnce(&Munge) -> Result<T, String> + Send + 'static,
    ) -> Asked<T> {
        if ASKED.fetch_add(1, Ordering::Relaxed) >= ASKED_MAX {
            ASKED.fetch_sub(1, Ordering::Relaxed);
            return Asked::known(Err(no_answer()));
        }
        let (tell, answer) = mpsc::channel();
        let munge = Arc::clone(munge);
        let started = process::with_signals_blocked(|| {
            let thread = std::thread::Builder::new().name("gaspi-munge".to_owned());
            thread.stack_size(STACK_BYTES).spawn(move || {
                let found = question(&munge);
                ASKED.fetch_sub(1, Ordering::Relaxed);
                // Nobody listens any more if it was given up meanwhile.
                let _ = tell.send(found);
            })
        });
        match started {
            Ok(_) => Asked::Awaited(answer),
            Err(error) => {
                ASKED.fetch_sub(1, Ordering::Relaxed);
                let error = Error::thread("the thread that asks munge", &error);
                Asked::known(Err(error.to_string()))
            }
        }
    }

    /// The answer, once and when it is there.
    pub(super) fn poll(&mut self) -> Option<Result<T, String>> {
        match self {
            Asked::Known(answer) => answer.take(),
            Asked::Awaited(answer) => match answer.try_recv() {
                Ok(found) => Some(found),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => Some(Err("munge: its thread ended".to_owned())),
            },
        }
    }
}

/// Why nothing comes of a question, and what to do.
pub(super) fn no_answer() -> String {
    "munged does not answer: the daemon of munge on this host may be stopped; restart it there \
     (systemctl restart munge), or use one key file on all hosts (GASPI_KEY_FILE)"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_that_is_not_answered_holds_up_neither_the_caller_nor_others() {
        let munge = Arc::new(Munge::stand_in());
        let (release, wait) = mpsc::channel::<()>();
        let mut first = Asked::of(&munge, move |_| Ok(wait.recv().is_ok()));
        let mut second = Asked::of(&munge, |_| Ok(7));
        let answer = loop {
            match second.poll() {
                Some(answer) => break answer,
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(answer, Ok(7));
        assert_eq!(first.poll(), None);
        release.send(()).expect("it waits");
        let answer = loop {
            match first.poll() {
                Some(answer) => break answer,
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(answer, Ok(true));
    }
}
