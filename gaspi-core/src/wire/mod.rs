//! Bytes on their way between processes: no sockets here.

pub mod codec;
