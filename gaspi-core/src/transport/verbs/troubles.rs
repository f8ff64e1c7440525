//! What is known of peers that devices do not reach: why pairs with them have ended, and where their
//! ports are.

use super::{DeviceTable, select};
use crate::ids::Rank;

/// Why pairs with a peer ended last, and whether somebody was told that there are none.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    pub(super) reason: String,
    pub(super) told: bool,
    /// Where the peer's port is in another network than this rank's.
    pub(super) elsewhere: Option<String>,
}

impl DeviceTable {
    /// Why pairs with `peer` ended last.
    pub(crate) fn last_error(&self, peer: Rank) -> Option<String> {
        self.troubles.lock().get(&peer).map(|trouble| trouble.reason.clone())
    }

    pub(super) fn note_trouble(&self, peer: Rank, reason: String) {
        self.troubles.lock().entry(peer).or_default().reason = reason;
    }

    /// Notes where a peer's port is, and says once if that is another network than this rank's.
    pub(super) fn note_place(&self, peer: Rank, gid: [u8; 16]) {
        let port = &self.device.handles.port;
        let Some(own) = port.subnet.filter(|own| !own.contains(gid)) else { return };
        let place = format!("its port {} is not in {own}, the network of", select::written(gid));
        let place = format!("{place} {}; a router has to be between", self.device.description());
        let mut troubles = self.troubles.lock();
        let known = &mut troubles.entry(peer).or_default().elsewhere;
        if known.as_ref() != Some(&place) {
            log::info!("{peer} by RDMA: {place}");
            *known = Some(place);
        }
    }

    /// A reason why a peer's device does not answer, with what is known of its place.
    pub(super) fn with_place(&self, peer: Rank, reason: String) -> String {
        let troubles = self.troubles.lock();
        match troubles.get(&peer).and_then(|trouble| trouble.elsewhere.as_ref()) {
            Some(place) => format!("{reason}; {place}"),
            None => reason,
        }
    }

    /// Says once that no device carries data to `peer`.
    pub(super) fn warn_of_streams(&self, peer: Rank, reason: &str) {
        if !std::mem::replace(&mut self.troubles.lock().entry(peer).or_default().told, true) {
            log::warn!("data to {peer} goes by TCP, not by the RDMA device: {reason}");
        }
    }
}
