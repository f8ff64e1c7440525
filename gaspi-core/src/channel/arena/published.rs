//! Arenas on nodes of many ranks: a step of the group tells of them. Each member finds those of its
//! node in the memory that all have mapped, or else maps them by their owners' descriptors. No
//! message is sent for that, and no connection made.
//!
//! Members of a node of few ranks register their arenas with each other, and so do those that may
//! not open each other's descriptors. All members of a group take the step alike.

use super::Channels;
use crate::control::GroupCall;
use crate::error::Result;
use crate::ids::Rank;
use crate::runtime::Inner;
use crate::segment::published::Published;
use crate::segment::{ARENA, MAPPED_AT_ONCE, Target};
use crate::sync::arrival_slot::PAYLOAD_WORDS;
use crate::timeout::Deadline;
use crate::transport::shm::area::liveness;
use std::collections::HashMap;

impl Channels {
    /// Whether this rank may copy from and to the process of `rank`, whose arena it has mapped.
    fn copies(&self, rank: Rank) -> bool {
        self.view(rank).is_some_and(|view| view.copies.is_some())
    }
}

impl Inner {
    /// Whether members tell of their arenas in a step: the same on all of them.
    pub(in crate::channel) fn tells_of_arenas(&self, ranks: &[Rank]) -> bool {
        let mut nodes: HashMap<u64, usize> = HashMap::new();
        ranks.iter().any(|rank| {
            let members = nodes.entry(self.ranks.cards.at(*rank).node()).or_default();
            *members += 1;
            *members > MAPPED_AT_ONCE
        })
    }

    /// Whether members of this node map each other's arenas by that step.
    pub(in crate::channel) fn maps_arenas(&self, ranks: &[Rank]) -> bool {
        let locals = || ranks.iter().filter(|rank| self.ranks.is_local(**rank));
        locals().count() > MAPPED_AT_ONCE
            && locals().all(|rank| self.ranks.area.may_open_descriptors(*rank))
    }

    /// Whether this rank may copy from and to the processes of all other members of its node.
    pub(in crate::channel) fn copies_all(&self, ranks: &[Rank]) -> bool {
        let is_other = |rank: &&Rank| **rank != self.ranks.me && self.ranks.is_local(**rank);
        ranks.iter().filter(is_other).all(|rank| self.channels.copies(*rank))
    }

    /// Tells the members where this rank's arena is, and maps those of its node. That it cannot is
    /// kept in the call, to be reported to all.
    ///
    /// # Errors
    /// Those of the step.
    pub(in crate::channel) fn exchange_arenas(
        &self,
        call: &mut GroupCall<'_>,
        deadline: Deadline,
    ) -> Result<()> {
        let failure = call.failure();
        let [status, details] = call.report(failure.as_ref());
        let arena = self.channels.arena().filter(|_| self.maps_arenas(call.ranks()));
        let told = arena.filter(|_| failure.is_none()).map(|arena| {
            let published = arena.segment.publish(self.memory.nonce, false);
            let [file, size, _, nonce] = published.words();
            [file, size, std::ptr::from_ref(&self.memory.nonce) as u64, nonce]
        });
        let [file, size, address, nonce] = told.unwrap_or_default();
        call.arrive(&[status, details, file, size, address, nonce]);
        call.await_all(deadline)?;
        let told = call.payloads()?;
        if failure.is_none()
            && let Err(error) = self.map_arenas(call, &told)
        {
            call.set_failure(error);
        }
        Ok(())
    }

    /// Maps the arenas of which the step awaited last has told, of members of this node.
    fn map_arenas(&self, call: &GroupCall<'_>, told: &[[u64; PAYLOAD_WORDS]]) -> Result<()> {
        if !self.maps_arenas(call.ranks()) {
            return Ok(());
        }
        // Ranks that leave do not say so. What a channel uses stays mapped.
        let left = |rank: &&Rank| self.ranks.liveness(**rank) == liveness::LEFT;
        let locals = self.ranks.area.locals().iter();
        locals.filter(left).for_each(|rank| self.channels.forget(*rank, None));
        for (rank, told) in call.ranks().iter().zip(told) {
            if *rank == self.ranks.me || !self.ranks.is_local(*rank) {
                continue;
            }
            let [_, _, file, size, address, nonce] = *told;
            if let Some(published) = Published::from_words([file, size, 0, nonce]) {
                self.map_arena(*rank, &published, (address, nonce))?;
            }
        }
        Ok(())
    }

    fn map_arena(&self, rank: Rank, published: &Published, nonce: (u64, u64)) -> Result<()> {
        let known = self.channels.view(rank);
        if known.is_some_and(|view| view.target.generation == published.generation) {
            return Ok(());
        }
        if let Some(room) = self.ranks.area.arena_room(rank)? {
            let (generation, size) = (published.generation, published.size);
            let target = Target::in_room(ARENA, (generation, size), &room, self.memory.shape)?;
            self.learn_arena(rank, target, nonce);
            return Ok(());
        }
        let pid = self.ranks.cards.at(rank).pid();
        match published.map(ARENA, pid, self.memory.shape, self.ranks.me)? {
            Some(target) => {
                self.learn_arena(rank, target, nonce);
            }
            // Its process has ended: what follows says so.
            None => self.ranks.may_have_ended(rank),
        }
        Ok(())
    }
}
