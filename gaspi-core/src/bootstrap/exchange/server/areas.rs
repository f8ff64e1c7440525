//! The memory files that the server makes for the ranks of its machine: shared areas, and cards.

use crate::error::Result;
use crate::ids::Rank;
use crate::os::{memory, sealed};
use crate::wire::shared_layout::SharedLayout;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What a shared area is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct AreaKey {
    pub(crate) node: u64,
    pub(crate) layout: SharedLayout,
}

/// The shared areas of the ranks of this machine.
#[derive(Debug, Default)]
pub(super) struct Areas {
    pub(super) by_key: HashMap<AreaKey, Arc<OwnedFd>>,
    pub(super) keys: HashMap<Rank, AreaKey>,
}

/// A shared area of this layout. Where no file may be so large it ends before the arenas.
pub(in crate::bootstrap::exchange) fn create(layout: SharedLayout) -> Result<OwnedFd> {
    let create = |bytes| memory::create(c"gaspi-node", bytes, false);
    create(layout.bytes_with_arenas()).or_else(|_| create(layout.bytes()))
}

/// The cards of all ranks, of which these bytes are the image.
pub(super) fn create_cards(image: &[u8]) -> Result<Arc<OwnedFd>> {
    sealed::create(c"gaspi-cards", image).map(Arc::new)
}

/// An area for each of these.
pub(super) fn create_all(
    keys: impl Iterator<Item = AreaKey>,
) -> Result<HashMap<AreaKey, Arc<OwnedFd>>> {
    let mut areas = HashMap::new();
    for key in keys {
        if let Entry::Vacant(entry) = areas.entry(key) {
            entry.insert(Arc::new(create(key.layout)?));
        }
    }
    Ok(areas)
}
