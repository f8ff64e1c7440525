//! The secret of a job, and the file that it is made from. The handshake that proves to know it is
//! in `wire::handshake`.

pub(super) mod keys;

/// Bytes of a job's secret.
pub const KEY_BYTES: usize = 32;

/// The secret of a job; never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Key(pub(super) [u8; KEY_BYTES]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}
