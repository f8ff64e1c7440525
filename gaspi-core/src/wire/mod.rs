//! Bytes on their way between processes: no sockets, and nothing that is kept.
//!
//! [`codec`] reads and writes them, [`frame`] encodes and decodes the frames of established
//! connections, [`handshake`] is what comes before the first of them.

pub mod codec;
pub(crate) mod frame;
pub(crate) mod handshake;
