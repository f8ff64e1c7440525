//! What libraries say to each other, as bytes: no sockets, and nothing that is kept.
//!
//! [`frame`] encodes and decodes the frames of established connections, [`handshake`] is what
//! comes before the first of them.

pub(crate) mod frame;
pub(crate) mod handshake;
