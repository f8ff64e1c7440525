//! What the tools that look after jobs have in common: signals to be read like input, the system
//! calls of a loop that waits for several things at once, the way to other machines, and times on
//! the command line.

pub mod duration;
pub mod hosts;
pub mod remote_agent;
pub mod remote_shell;
pub mod signals;
pub mod system;
