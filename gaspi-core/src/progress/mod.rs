//! Who makes communication progress, and when.
//!
//! [`caller`]: a thread that waits in a call looks after the sockets itself. [`thread`]: the
//! progress thread does while no caller is inside, and runs what must not wait for a call, such as
//! connecting and noticing deaths.

pub(crate) mod caller;
pub(crate) mod thread;
