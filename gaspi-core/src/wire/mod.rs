//! Bytes on their way between processes: no sockets, and nothing that is kept.
//!
//! [`codec`] reads and writes them, by the tables of [`fields`]. [`frame`] encodes and decodes the
//! frames of established connections, [`handshake`] is what comes before the first of them,
//! [`keepalive`] what is said on connections that watch. [`secret`] holds the keys of handshakes,
//! [`record_layer`] encrypts what follows some of them. [`shared_layout`] tells where things lie in
//! the memory that processes share instead.

pub mod codec;
pub(crate) mod fields;
pub(crate) mod frame;
pub(crate) mod handshake;
pub(crate) mod hash;
pub(crate) mod keepalive;
pub(crate) mod message;
pub(crate) mod record_layer;
pub(crate) mod secret;
pub(crate) mod shared_layout;
