//! What comes out of an exchange.

use super::membership::Membership;
use crate::bootstrap::{Card, KEY_BYTES};
use std::os::fd::OwnedFd;

/// What comes out of an exchange.
#[derive(Debug)]
pub struct Table {
    /// The cards of all ranks, by rank.
    pub cards: Vec<Card>,
    /// The area of this rank's node: a memory file sealed in size.
    pub area: OwnedFd,
    /// Random and known to the ranks of this exchange only.
    pub token: [u8; 16],
    /// The secret that connections between nodes prove to know.
    pub key: [u8; KEY_BYTES],
    /// Keeps the launcher informed; to be dropped when the rank leaves the job.
    pub membership: Membership,
}
