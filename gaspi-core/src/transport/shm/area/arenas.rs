//! The arenas of a node of many ranks, which lie behind one another in the file of the shared area:
//! a rank maps all of them by one call, and learns of one more without any.
//!
//! All ranks of the node do that, or none: who cannot map so much says so when it joins. The last
//! rank that has left and uses none of it gives the memory back; if one has died, it goes with the
//! file.

use super::SharedArea;
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::limits::{self, Resource};
use crate::os::memory::{self, Mapping, Room, check_sealed};
use crate::segment::MAPPED_AT_ONCE;
use crate::sync::Ordering;
use crate::wire::shared_layout::SharedLayout;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

/// The file of the arenas, and where it is mapped once that is needed.
#[derive(Debug)]
pub(super) struct Arenas {
    file: Arc<OwnedFd>,
    mapping: OnceLock<Arc<Mapping>>,
    is_used: OnceLock<bool>,
}

impl Arenas {
    /// Those behind an area of this layout, if there is room for them in its file and in the
    /// addresses of this process.
    pub(super) fn behind(area: &OwnedFd, layout: SharedLayout, locals: usize) -> Option<Arenas> {
        let end = layout.bytes_with_arenas();
        if locals <= MAPPED_AT_ONCE || check_sealed(area.as_fd(), end).is_err() {
            return None;
        }
        let bytes = end - layout.arenas();
        // What else is to be mapped needs addresses too.
        let is_allowed =
            limits::allowed(Resource::AddressSpace).is_none_or(|most| bytes <= most / 4);
        if !is_allowed || !memory::has_addresses(bytes) {
            return None;
        }
        let file = Arc::new(area.try_clone().ok()?);
        Some(Arenas { file, mapping: OnceLock::new(), is_used: OnceLock::new() })
    }
}

impl SharedArea {
    /// The memory for the arena of `rank` of this node, where arenas lie in the file of the area.
    /// Once all have joined.
    ///
    /// # Errors
    /// The arenas cannot be mapped.
    pub(crate) fn arena_room(&self, rank: Rank) -> Result<Option<Room>> {
        let Some(arenas) = &self.arenas else { return Ok(None) };
        let maps = |rank: &Rank| self.page(*rank).maps_arenas.load(Ordering::Relaxed) == 1;
        if !arenas.is_used.get_or_init(|| self.locals.iter().all(maps)) {
            return Ok(None);
        }
        let at = self.layout.arenas();
        let mapping = match arenas.mapping.get() {
            Some(mapping) => mapping,
            None => {
                let bytes = self.layout.bytes_with_arenas() - at;
                let mapped = Mapping::new(arenas.file.as_fd(), at, bytes)
                    .map_err(|error| cannot_map(bytes, &error))?;
                mapped.keep_from_core_dumps();
                // Where another thread has been here too its mapping is used.
                arenas.mapping.get_or_init(|| Arc::new(mapped))
            }
        };
        let bytes = self.layout.arena_bytes();
        let offset = u64::from(self.place(rank).0) * bytes;
        let (file, mapping) = (Arc::clone(&arenas.file), Arc::clone(mapping));
        Ok(Some(Room { file, mapping, offset, bytes }))
    }

    /// Announces that this rank, which has left, uses no arena any more. The last of the node gives
    /// their memory back.
    pub(crate) fn show_closed(&self) {
        // Release: all that this rank wrote there comes before it.
        if self.own_page().has_closed.swap(1, Ordering::Release) == 1 {
            return;
        }
        let closed = &self.page(self.locals[0]).all_closed;
        let is_last = closed.fetch_add(1, Ordering::AcqRel) + 1 == self.locals.len() as u32;
        if let Some(arenas) = self.arenas.as_ref().filter(|_| is_last) {
            let at = self.layout.arenas();
            memory::give_back(arenas.file.as_fd(), at, self.layout.bytes_with_arenas() - at);
        }
    }

    /// Whether `rank` of this node, which has left, uses no arena any more.
    pub(crate) fn has_closed(&self, rank: Rank) -> bool {
        self.page(rank).has_closed.load(Ordering::Acquire) == 1
    }

    /// Whether this rank can map the arenas of the node.
    pub(super) fn show_arenas(&self) {
        let maps = self.arenas.is_some();
        self.own_page().maps_arenas.store(maps.into(), Ordering::Relaxed);
    }
}

fn cannot_map(bytes: u64, error: &io::Error) -> Error {
    let reason = format!("{error}; see ulimit -v");
    let what = format!("mapping {bytes} bytes for messages of collectives of the node's ranks");
    Error::System { call: what, reason }
}
