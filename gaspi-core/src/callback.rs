//! What may not be called in a function of the program that the library calls: its thread may be
//! the one that has to bring what the call would wait for.

use crate::error::{Error, Result};
use crate::sync::epoch;
use crate::timeout::Timeout;

/// To be called where `call` is about to wait, or to begin what it will wait for.
///
/// # Errors
/// [`Error::Unsupported`]: this thread [is in such a function](epoch::is_in_callback), and the
/// timeout is another than [`Timeout::Test`].
#[inline]
pub fn may_wait(timeout: Timeout, call: &str) -> Result<()> {
    if timeout == Timeout::Test { Ok(()) } else { outside_callback(call) }
}

/// The same for a call that waits whatever its timeout.
///
/// # Errors
/// As [`may_wait`].
#[inline]
pub fn outside_callback(call: &str) -> Result<()> {
    if epoch::is_in_callback() { Err(waits(call)) } else { Ok(()) }
}

#[cold]
fn waits(call: &str) -> Error {
    let reason = format!("a function that the library calls may not wait ({call}); test instead");
    Error::Unsupported { reason }
}
