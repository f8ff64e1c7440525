//! The messages of a commit by leaders: those of the schedule, and within a node those from its
//! members to their leader, which come first, and back, which come last.

use super::schedule::TAGS;
use super::{Leaders, Messages};
use crate::ids::Rank;
use crate::wire::message::COMMITS_MAX;
use std::sync::Arc;
use std::time::Duration;

/// The tags of messages within a node.
const GATHER: u8 = TAGS as u8;
const SPREAD: u8 = GATHER + 1;

/// Tags of a commit are below this number.
pub(crate) const COMMIT_TAGS: u8 = SPREAD + 1;

/// A message that this rank gets.
#[derive(Debug)]
pub(crate) struct RouteIn {
    pub(crate) from: Rank,
    pub(crate) tag: u8,
    /// The members that it tells of, by their index.
    pub(crate) of: Box<[usize]>,
}

/// A message that this rank sends.
#[derive(Debug)]
pub(crate) struct RouteOut {
    /// How many of the incoming messages, in their order, it depends on.
    pub(crate) after: usize,
    pub(crate) to: Arc<[Rank]>,
    pub(crate) tag: u8,
    pub(crate) of: Box<[usize]>,
}

/// The messages of one member, which come and go in this order.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) incoming: Box<[RouteIn]>,
    pub(crate) outgoing: Box<[RouteOut]>,
    /// How long a member waits before it sends its list to all.
    pub(crate) patience: Duration,
}

impl Leaders {
    /// The messages of this rank, the member of this index; none if one could not tell of all.
    pub(crate) fn route(&self, me: usize) -> Option<Route> {
        if self.ranks.len() > COMMITS_MAX as usize {
            return None;
        }
        let all: Box<[usize]> = (0..self.ranks.len()).collect();
        let own = &self.nodes[self.node];
        let Some(duty) = &self.duty else {
            let leader = self.locals[0];
            let spread = RouteIn { from: leader, tag: SPREAD, of: all };
            let gather = RouteOut { after: 0, to: [leader].into(), tag: GATHER, of: [me].into() };
            let (incoming, outgoing) = ([spread].into(), [gather].into());
            return Some(Route { incoming, outgoing, patience: self.patience() });
        };
        let Messages { schedule, receivers } = &duty.of_words;
        let others: Arc<[Rank]> = self.locals[1..].into();
        let gather = own[1..].iter().map(|member| {
            let member = *member as usize;
            RouteIn { from: self.ranks[member], tag: GATHER, of: [member].into() }
        });
        let between = schedule.incoming.iter().map(|incoming| {
            let of = self.members(incoming.of).collect();
            RouteIn { from: self.leader(incoming.from), tag: incoming.tag, of }
        });
        let incoming: Box<[RouteIn]> = gather.chain(between).collect();
        let sent = schedule.outgoing.iter().zip(receivers).map(|(outgoing, to)| {
            let of = self.members(outgoing.of).collect();
            let after = others.len() + outgoing.after;
            RouteOut { after, to: Arc::clone(to), tag: outgoing.tag, of }
        });
        let spread = (!others.is_empty()).then(|| RouteOut {
            after: incoming.len(),
            to: Arc::clone(&others),
            tag: SPREAD,
            of: all,
        });
        let outgoing = sent.chain(spread).collect();
        Some(Route { incoming, outgoing, patience: self.patience() })
    }
}
