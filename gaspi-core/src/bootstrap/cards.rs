//! The cards of all ranks: one image for each machine, which its server makes and seals, and which
//! all its ranks map.
//!
//! Nothing of it is copied: a [`CardView`] reads what it is asked for. Where things lie is in
//! [`image`].
//!
//! Invariant: an image is checked once, whole, before anything of it is used. Nobody can change it
//! after that: it is sealed, or belongs to this rank alone.

mod image;

use super::card::Card;
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::sealed::SealedMapping;
use crate::wire::codec::Decoded;
pub(crate) use image::encode;
use image::{Address, Mask, OfHost, OfRank, PORTS_FROM, Part, Sections};
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;

/// The cards of all ranks of a job, by rank.
#[derive(Debug)]
pub struct Cards {
    image: Image,
    sections: Sections,
    /// The machine whose processes this rank cannot see.
    unseen: Option<u64>,
}

/// Where the bytes are.
#[derive(Debug)]
pub(crate) enum Image {
    /// Shared with all ranks of the machine.
    Shared(SealedMapping),
    /// Of a rank without others on its machine.
    Own(Box<[u8]>),
}

impl Deref for Image {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Image::Shared(mapping) => mapping,
            Image::Own(bytes) => bytes,
        }
    }
}

impl Cards {
    /// Those of an image.
    ///
    /// # Errors
    /// It is none, or what it mentions is not there.
    pub(crate) fn new(image: Image) -> Decoded<Cards> {
        let sections = image::check(&image)?;
        Ok(Cards { image, sections, unseen: None })
    }

    /// Those of a rank that shares them with nobody.
    ///
    /// # Errors
    /// There are more than a job can have.
    pub(crate) fn own(cards: &[Card]) -> Result<Cards> {
        Cards::new(Image::Own(encode(cards).into()))
            .map_err(|error| Error::Meeting { reason: format!("the cards of all ranks: {error}") })
    }

    /// The same for a rank to which the numbers of the processes of this machine mean nothing.
    #[must_use]
    pub(super) fn without_processes_of(self, machine: u64) -> Cards {
        Cards { unseen: Some(machine), ..self }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.sections.count(Part::Ranks)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The card of `rank`, which exists.
    pub fn at(&self, rank: Rank) -> CardView<'_> {
        assert!(rank.index() < self.len(), "the job has no {rank}");
        CardView { cards: self, rank, of_rank: self.nth(Part::Ranks, rank.index() as u32) }
    }

    /// All, by rank.
    pub fn iter(&self) -> impl Iterator<Item = CardView<'_>> {
        (0..self.len()).map(|rank| self.at(Rank(rank as u16)))
    }

    fn nth<T: image::Record>(&self, part: Part, index: u32) -> T {
        self.sections.nth(&self.image, part, index)
    }
}

/// How many cards an image has, if it is one.
pub(crate) fn check(image: &[u8]) -> Option<usize> {
    Some(image::check(image).ok()?.count(Part::Ranks))
}

/// The card of one rank; the methods tell what the fields of [`Card`] do.
#[derive(Debug, Clone, Copy)]
pub struct CardView<'a> {
    cards: &'a Cards,
    rank: Rank,
    of_rank: OfRank,
}

impl<'a> CardView<'a> {
    /// The rank.
    pub fn rank(self) -> Rank {
        self.rank
    }

    /// Its process, 0 where this rank cannot see it.
    pub fn pid(self) -> i32 {
        let is_unseen = self.cards.unseen.is_some_and(|unseen| self.machine() == unseen);
        if is_unseen { 0 } else { self.of_rank.pid }
    }

    /// When that process was started.
    pub fn start_time(self) -> u64 {
        self.of_rank.start_time
    }

    /// What names the rank's listener.
    pub fn instance(self) -> u64 {
        self.of_rank.instance
    }

    /// Ranks of the same node share memory.
    pub fn node(self) -> u64 {
        match self.of_rank.node.checked_sub(1) {
            None => self.machine(),
            Some(index) => self.cards.nth(Part::Nodes, index),
        }
    }

    /// Ranks of the same machine registered with the same server.
    pub fn machine(self) -> u64 {
        self.of_host().machine
    }

    /// Its machine in words.
    pub fn host(self) -> &'a str {
        let OfHost { text, text_bytes, .. } = self.of_host();
        let Cards { image, sections, .. } = self.cards;
        let bytes = sections.slice(image, Part::Text, text, text_bytes.into());
        // It was checked.
        std::str::from_utf8(bytes).unwrap_or_default()
    }

    /// The cores that it may use, as a mask.
    pub fn cpus(self) -> impl Iterator<Item = u64> + use<'a> {
        let Mask { first, words } = self.cards.nth(Part::Masks, self.of_rank.cpus.into());
        (first..first + words).map(move |at| self.cards.nth(Part::Words, at))
    }

    /// Where its listener for other nodes answers.
    pub fn endpoints(self) -> impl Iterator<Item = SocketAddr> + use<'a> {
        let OfHost { addresses, listened, .. } = self.of_host();
        (0..u32::from(listened)).map(move |nth| {
            let Address { ip, .. } = self.cards.nth(Part::Addresses, addresses + nth);
            let port = match self.of_rank.port.checked_sub(PORTS_FROM) {
                None => self.of_rank.port as u16,
                Some(first) => self.cards.nth(Part::Ports, first + nth),
            };
            SocketAddr::new(ip, port)
        })
    }

    /// The networks of device ports that it could use, with their bits, the best one first.
    pub fn networks(self) -> impl Iterator<Item = (IpAddr, u8)> + use<'a> {
        let OfHost { addresses, listened, networks, .. } = self.of_host();
        let first = addresses + u32::from(listened);
        (first..first + u32::from(networks)).map(move |at| {
            let Address { ip, bits } = self.cards.nth(Part::Addresses, at);
            (ip, bits)
        })
    }

    /// The abstract name of the rank's listener, for ranks of its node.
    pub(crate) fn listener(self) -> String {
        super::card::listener(self.instance())
    }

    fn of_host(self) -> OfHost {
        self.cards.nth(Part::Hosts, self.of_rank.host.into())
    }
}

#[cfg(test)]
pub(crate) mod tests;
