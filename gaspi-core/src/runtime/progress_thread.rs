//! The progress thread before it has a rank to serve: whether it can be had is known before the
//! ranks of the job meet.

use super::Inner;
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::process;
use crate::progress::thread::{Progress, Served};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

/// The thread, which waits for its rank. It ends if this is dropped.
#[derive(Debug)]
pub(super) struct ProgressThread {
    hand_over: mpsc::Sender<Progress>,
    thread: JoinHandle<()>,
}

impl ProgressThread {
    /// Starts it for the rank with this number.
    ///
    /// # Errors
    /// [`Error::System`] with the limit, if no more threads may be started.
    pub(super) fn start(rank: Rank) -> Result<ProgressThread> {
        let (hand_over, taken) = mpsc::channel::<Progress>();
        // A thread inherits the mask of signals: none of the program's are delivered to it.
        let started = process::with_signals_blocked(|| {
            let thread = std::thread::Builder::new().name("gaspi-progress".to_owned());
            thread.stack_size(256 * 1024).spawn(move || {
                if let Ok(progress) = taken.recv() {
                    progress.run();
                }
            })
        });
        // The others are told too.
        let what = format!("the progress thread of {rank}");
        let thread = started.map_err(|error| Error::thread(&what, &error))?;
        Ok(ProgressThread { hand_over, thread })
    }

    /// It serves this rank from now on.
    ///
    /// # Errors
    /// Those of [`Progress::new`].
    pub(super) fn serve(self, inner: &Arc<Inner>) -> Result<JoinHandle<()>> {
        let progress = Progress::new(Arc::clone(inner) as Arc<dyn Served>)?;
        // It waits for it.
        let _ = self.hand_over.send(progress);
        Ok(self.thread)
    }
}
