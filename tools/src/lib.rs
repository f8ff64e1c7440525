//! What the tools that look after jobs have in common: signals to be read like input, and the system
//! calls of a loop that waits for several things at once.

pub mod signals;
pub mod system;
