//! Where the slots of channels that are opened together lie in the range of a member. The device
//! has to know those for members of other nodes only, which lie behind all else but data.
//!
//! ```text
//! rings that members of its node send to          by channel, then by sender
//! room that others of its members need
//! rings that members of other nodes send to       by channel, then by sender
//! rings from which it sends to these              by channel, then by receiver
//! ```
//!
//! A ring is the slots between two members. How many of each kind there are differs between
//! members, so that a sender has to know how its receiver sees the members.

use super::layout::Layout;
use std::ops::Range;

/// All rings in the range of a member.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rings {
    /// Where they begin.
    at: u64,
    members: u64,
    /// Bytes of one ring of each channel.
    sum: u64,
    /// Room for so many members of other nodes, whatever their number is.
    room: Option<u64>,
}

/// Those of one channel.
#[derive(Debug, Clone, Copy)]
pub(super) struct RingsOfPart {
    /// Bytes of one.
    bytes: u64,
    /// Bytes of one of each channel before.
    before: u64,
}

impl Rings {
    /// The rings of channels of these layouts, which begin at `at`. With `room` for as many members
    /// of other nodes as there can be they end at the same place on all members.
    pub(super) fn new<'a>(
        at: u64,
        members: usize,
        room: bool,
        layouts: impl Iterator<Item = &'a Layout>,
    ) -> Option<(Rings, Vec<RingsOfPart>)> {
        let members = members as u64;
        let mut rings = Rings { at, members, sum: 0, room: room.then_some(members) };
        let mut parts = Vec::new();
        for layout in layouts {
            let bytes = layout.ring();
            parts.push(RingsOfPart { bytes, before: rings.sum });
            rings.sum = rings.sum.checked_add(bytes)?;
        }
        // What any member needs at most.
        rings.sum.checked_mul(2 * members)?.checked_add(at)?;
        Some((rings, parts))
    }

    /// Where they end on a member that sees so many on other nodes.
    pub(super) fn end(&self, remotes: u64) -> u64 {
        self.at + (self.members + self.room.unwrap_or(remotes)) * self.sum
    }

    /// What its device has to know of them.
    pub(super) fn of_device(&self, remotes: u64) -> Range<u64> {
        let end = self.end(remotes);
        end - 2 * remotes * self.sum..end
    }

    /// The ring that the `nth` member of the node of a member sends to.
    fn ring_of_local(&self, part: RingsOfPart, locals: u64, nth: u64) -> u64 {
        self.at + locals * part.before + nth * part.bytes
    }

    /// The ring that the `nth` member of other nodes sends to.
    fn ring_of_remote(&self, part: RingsOfPart, remotes: u64, nth: u64) -> u64 {
        self.of_device(remotes).start + remotes * part.before + nth * part.bytes
    }

    /// The rings that members of other nodes send to.
    pub(super) fn rings_of_remotes(&self, part: RingsOfPart, remotes: u64) -> Range<u64> {
        self.ring_of_remote(part, remotes, 0)..self.ring_of_remote(part, remotes, remotes)
    }

    /// The ring from which a member sends to the `nth` of other nodes.
    fn ring_to_remote(&self, part: RingsOfPart, remotes: u64, nth: u64) -> u64 {
        self.ring_of_remote(part, remotes, nth) + remotes * self.sum
    }
}

/// How two members see each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Relation {
    local: bool,
    /// The other one's number among the members of this rank's node, or among those of other nodes;
    /// and this rank's as the other one counts.
    nth_here: u64,
    nth_there: u64,
    /// How many members the other one's node has.
    locals_there: u64,
}

/// The members of a channel as one of them sees them.
#[derive(Debug)]
pub(super) struct Relations {
    pub(super) all: Vec<Relation>,
    members: u64,
    locals: u64,
}

impl Relations {
    /// For member `me` of members on these nodes, which are numbered from 0.
    pub(super) fn new(nodes: &[u32], me: usize) -> Relations {
        let count = nodes.iter().max().map_or(0, |last| *last as usize + 1);
        let (mut sizes, mut before_me, mut before) =
            (vec![0u64; count], vec![0u64; count], vec![0u64; count]);
        for (index, node) in nodes.iter().enumerate() {
            sizes[*node as usize] += 1;
            before_me[*node as usize] += u64::from(index < me);
        }
        let own = nodes[me];
        let all = nodes.iter().enumerate().map(|(index, node)| {
            let (local, at) = (*node == own, *node as usize);
            // Members of this rank's node, and in all, before the other one.
            let (here, all_here) = (before[own as usize], index as u64);
            before[at] += 1;
            let (there, all_there) = (before_me[at], me as u64);
            let (nth_here, nth_there) =
                if local { (here, there) } else { (all_here - here, all_there - there) };
            Relation { local, nth_here, nth_there, locals_there: sizes[at] }
        });
        Relations { all: all.collect(), members: nodes.len() as u64, locals: sizes[own as usize] }
    }

    /// How many members are of other nodes.
    pub(super) fn remotes(&self) -> u64 {
        self.members - self.locals
    }

    /// Where the ring of a member lies here, and where this rank's lies there, and the one from
    /// which this rank sends to it.
    pub(super) fn rings(&self, rings: &Rings, part: RingsOfPart, relation: Relation) -> [u64; 3] {
        let Relation { local, nth_here, nth_there, locals_there } = relation;
        if local {
            let here = rings.ring_of_local(part, self.locals, nth_here);
            return [here, rings.ring_of_local(part, locals_there, nth_there), here];
        }
        let (remotes, remotes_there) = (self.remotes(), self.members - locals_there);
        [
            rings.ring_of_remote(part, remotes, nth_here),
            rings.ring_of_remote(part, remotes_there, nth_there),
            rings.ring_to_remote(part, remotes, nth_here),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::ChannelSpec;
    use super::*;
    use proptest::prelude::*;

    fn layouts(slots: &[u32], members: usize) -> Vec<Layout> {
        let layout = |slots: &u32| {
            let spec = ChannelSpec { slots: *slots, message_bytes: 128, stage_bytes: 0 };
            Layout::compact(spec, members)
        };
        slots.iter().map(layout).collect()
    }

    proptest! {
        #[test]
        fn members_agree_on_rings_that_do_not_overlap(
            nodes in prop::collection::vec(0..4u32, 1..9),
            slots in prop::collection::vec(1..5u32, 1..5),
            room in any::<bool>(),
        ) {
            let (members, layouts) = (nodes.len(), layouts(&slots, nodes.len()));
            let (all, parts) = Rings::new(1000, members, room, layouts.iter()).expect("they fit");
            let relations: Vec<Relations> =
                (0..members).map(|me| Relations::new(&nodes, me)).collect();
            for (me, seen) in relations.iter().enumerate() {
                let of_device = all.of_device(seen.remotes());
                let mut found = Vec::new();
                for part in &parts {
                    for (other, relation) in seen.all.iter().enumerate() {
                        let [here, there, waiting] = seen.rings(&all, *part, *relation);
                        let back = relations[other].rings(&all, *part, relations[other].all[me]);
                        prop_assert_eq!([here, there], [back[1], back[0]]);
                        let far = nodes[me] != nodes[other];
                        found.push((here, part.bytes));
                        found.extend(far.then_some((waiting, part.bytes)));
                        for at in [here, waiting] {
                            prop_assert_eq!(of_device.contains(&at), far);
                            prop_assert!(at >= 1000 && at + part.bytes <= all.end(seen.remotes()));
                        }
                    }
                    let of_part = all.rings_of_remotes(*part, seen.remotes());
                    let far = found.iter().filter(|(at, _)| of_part.contains(at)).count() as u64;
                    prop_assert_eq!(far, seen.remotes());
                }
                found.sort_unstable();
                prop_assert!(found.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
            }
        }
    }
}
