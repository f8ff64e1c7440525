//! The memory of one row, as the devices of both ranks of a pair know it.

use super::device::{Known, Place, failure};
use super::{End, Work};
use crate::failure::Result;
use crate::job::Segment;
use crate::memory::Region;

/// Words of an offer: where source and inbox lie, and their keys.
const WORDS: usize = 4;
/// Where this rank's offer lies in its source, and where the peer's comes. Nobody writes into the
/// source of another rank later, so that it stays until it is read.
const OWN: usize = 0;
const OF_PEER: usize = 64;

/// Memory that this rank's device knows, and has told the peer of.
#[derive(Debug)]
pub(crate) struct Offer<'a> {
    end: &'a End,
    source: Known<'a>,
    inbox: Known<'a>,
}

/// The memory of both ranks.
#[derive(Debug)]
pub(crate) struct Verbs<'a> {
    pub(crate) end: &'a End,
    offer: Offer<'a>,
    peer_source: Place,
    peer_inbox: Place,
}

impl<'a> Offer<'a> {
    /// Has the device know source and inbox of this rank, and tells the peer by the library. It has
    /// heard of it after the next barrier.
    pub(crate) fn make(
        end: &'a End,
        segment: &Segment<'_>,
        peer: usize,
        (source, inbox): (Region<'_>, Region<'_>),
    ) -> Result<Offer<'a>> {
        let offer = Offer { end, source: end.know(source)?, inbox: end.know(inbox)? };
        for (at, place) in [offer.source.remote(), offer.inbox.remote()].into_iter().enumerate() {
            source.set_last(OWN + 16 * at, 8, place.address);
            source.set_last(OWN + 16 * at + 8, 8, place.key.into());
        }
        segment.write(OWN, peer, OF_PEER, 8 * WORDS, 0)?;
        Ok(offer)
    }

    /// Takes the offer of the peer.
    pub(crate) fn meet(self, source: Region<'_>) -> Result<Verbs<'a>> {
        let place = |at: usize| {
            let (address, key) = (source.last(OF_PEER + at, 8), source.last(OF_PEER + at + 8, 8));
            (address != 0).then_some(Place { address, key: key as u32 })
        };
        let (Some(peer_source), Some(peer_inbox)) = (place(0), place(16)) else {
            return Err(failure("the peer's memory was not told"));
        };
        Ok(Verbs { end: self.end, offer: self, peer_source, peer_inbox })
    }
}

impl Verbs<'_> {
    /// From this rank's source to the peer's inbox.
    #[inline]
    pub(crate) fn write(&self, offset: usize, size: usize) -> Work {
        let from = self.offer.source.local().at(offset);
        Work::Write { from, to: self.peer_inbox.at(offset), size }
    }

    /// The same, of which the peer is told.
    #[inline]
    pub(crate) fn write_notified(&self, offset: usize, size: usize) -> Work {
        let from = self.offer.source.local().at(offset);
        Work::Notified { from, to: self.peer_inbox.at(offset), size }
    }

    /// From the peer's source to this rank's inbox.
    #[inline]
    pub(crate) fn read(&self, offset: usize, size: usize) -> Work {
        let to = self.offer.inbox.local().at(offset);
        Work::Read { to, from: self.peer_source.at(offset), size }
    }

    /// Reads the last byte that was written: behind it the write is in the peer's memory.
    #[inline]
    pub(crate) fn read_behind(&self, offset: usize, size: usize) -> Work {
        let from = self.peer_inbox.at(offset + size - 1);
        Work::Read { to: self.end.scratch(), from, size: 1 }
    }

    /// A message of this rank's source.
    #[inline]
    pub(crate) fn message(&self, offset: usize, size: usize) -> Work {
        Work::Send { from: self.offer.source.local().at(offset), size }
    }
}
