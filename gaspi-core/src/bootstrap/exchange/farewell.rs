//! What the hub of an exchange still has to say to relays when its own rank goes on.
//!
//! The table may be larger than what the kernels of both sides take, and a relay that is stopped
//! reads none of it. Others wait for the rank of the hub meanwhile. So a thread stays with such
//! relays, and keeps nothing but their connections.

use super::server::RelayId;
use super::tcp_connection::TcpConnection;
use crate::bootstrap::system;
use crate::error::{Error, Result};
use crate::os::process;
use crate::timeout::Deadline;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The relays to stay with.
pub(super) type Relays = Vec<(RelayId, TcpConnection)>;

/// The thread calls little.
const STACK_BYTES: usize = 256 * 1024;
/// How long to wait at least.
const SHORTEST: Duration = Duration::from_millis(1);

/// A thread stays with `relays` from now on, and empties the list.
///
/// # Errors
/// No thread can be had; the list is as it was.
pub(super) fn leave_to_thread(relays: &mut Relays) -> Result<()> {
    let (hand_over, taken) = mpsc::channel();
    let started = process::with_signals_blocked(|| {
        let thread = std::thread::Builder::new().name("gaspi-farewell".to_owned());
        thread.stack_size(STACK_BYTES).spawn(move || {
            if let Ok(relays) = taken.recv() {
                stay_with(relays);
            }
        })
    });
    started.map_err(|error| Error::thread("a thread for them", &error))?;
    // It waits for them.
    let _ = hand_over.send(std::mem::take(relays));
    Ok(())
}

/// Says the rest to each relay, and waits until it closes: were the connection closed here, the
/// kernel would give up a relay that stays stopped. One whose machine has vanished is let go.
fn stay_with(mut relays: Relays) {
    let mut bytes = Vec::new();
    while !relays.is_empty() {
        for (_, stream) in &mut relays {
            // What it says changes nothing any more.
            while stream.read(&mut bytes) {
                bytes.clear();
            }
            stream.flush();
            stream.look_for_silence();
        }
        relays.retain(|(_, stream)| stream.ended().is_none());
        let fds: Vec<_> =
            relays.iter().map(|(_, stream)| (stream.as_fd(), stream.is_pending())).collect();
        let look_at = relays.iter().filter_map(|(_, stream)| stream.look_at()).min();
        let limit = look_at.map(|at| at.saturating_duration_since(Instant::now()).max(SHORTEST));
        system::wait(&fds, Deadline::Never, limit);
    }
}
