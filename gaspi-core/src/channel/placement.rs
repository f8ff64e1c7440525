//! Where the members of a channel are to each other. It never changes.

use crate::ids::Rank;
use crate::ranks::Ranks;

/// What follows from it for how they exchange data. Members of the same node agree.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placement {
    all_reachable: bool,
    shares_cores: bool,
    is_one_machine: bool,
}

impl Placement {
    /// That of `members`, all of which are reachable or not; `shares` says of a member, by index,
    /// whether it takes its node for one whose ranks share cores.
    pub(super) fn new(
        ranks: &Ranks,
        members: &[Rank],
        all_reachable: bool,
        shares: impl Fn(usize) -> bool,
    ) -> Placement {
        let machine = |rank: Rank| ranks.cards[rank.index()].machine;
        Placement {
            all_reachable,
            shares_cores: members
                .iter()
                .enumerate()
                .any(|(index, rank)| ranks.is_local(*rank) && shares(index)),
            is_one_machine: members.iter().all(|rank| machine(*rank) == machine(ranks.me)),
        }
    }

    /// Whether each member may copy from and to the processes of all others of its node.
    #[inline]
    pub(super) fn all_reachable(self) -> bool {
        self.all_reachable
    }

    /// Whether a member of this node takes its ranks for such as share cores.
    #[inline]
    pub(super) fn shares_cores(self) -> bool {
        self.shares_cores
    }

    /// Whether all members are on one machine, of whatever nodes.
    #[inline]
    pub(super) fn is_one_machine(self) -> bool {
        self.is_one_machine
    }
}
