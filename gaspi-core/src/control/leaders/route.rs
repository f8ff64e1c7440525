//! The messages of a commit by leaders: those of the schedule, and within a node those from its
//! members to their leader, which come first, and back, which come last. The first of each
//! [`TEAM`] members of a node speaks for these with the leader. Where leaders save nothing, each
//! member tells each.

use super::{Leaders, Messages, PATIENCE, Places};
use crate::ids::Rank;
use crate::policy::schedule::TAGS;
use std::sync::Arc;
use std::time::Duration;

/// The tags of messages within a node.
const GATHER: u8 = TAGS as u8;
const SPREAD: u8 = GATHER + 1;
/// The tag of messages of each to each.
const EACH: u8 = SPREAD + 1;

/// Tags of a commit's messages are below this number.
pub(crate) const COMMIT_TAGS: u8 = EACH + 1;

/// The tag of a digest that asks whether its receiver commits something else.
pub(crate) const QUESTION: u8 = COMMIT_TAGS;
/// The same, to be answered once the receiver has begun.
pub(crate) const COLLECT: u8 = QUESTION + 1;
/// The tag of the answer to either: the receiver's commit, or those of all where it has ended.
pub(crate) const ANSWER: u8 = COLLECT + 1;

/// Members of a node that have one connection each, with the first of them.
const TEAM: usize = 16;

/// So many members of one node tell each other by messages of each to each.
pub(crate) const FEW: usize = 4;

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

/// The messages of one member, which go in this order. One of those that come may be taken before
/// others that are in front of it.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) incoming: Box<[RouteIn]>,
    pub(crate) outgoing: Box<[RouteOut]>,
    /// Whether each member tells each.
    pub(crate) is_of_each: bool,
    /// How long a member waits before it asks those whose messages it awaits.
    pub(crate) patience: Duration,
}

impl Route {
    /// Those of a member by whom leaders are not needed.
    pub(crate) fn of_each(ranks: &[Rank], me: usize) -> Route {
        let others = || ranks.iter().copied().enumerate().filter(|(member, _)| *member != me);
        let told = others().map(|(member, from)| RouteIn { from, tag: EACH, of: [member].into() });
        let to = others().map(|(_, rank)| rank).collect();
        let tells = RouteOut { after: 0, to, tag: EACH, of: [me].into() };
        let patience = PATIENCE * ranks.len() as u32;
        let (incoming, outgoing) = (told.collect(), [tells].into());
        Route { incoming, outgoing, is_of_each: true, patience }
    }
}

impl Places<'_> {
    /// The messages of a commit of the member `me`: by leaders, if they are fewer than those of
    /// each to each.
    pub(super) fn route(self, me: usize) -> Route {
        let ranks = Arc::clone(self.ranks);
        let saves = if self.order.nodes() == 1 { ranks.len() > FEW } else { self.leaders_save() };
        // Commits publish no lines.
        let by_leaders = saves.then(|| self.leaders(me, 0).route(me)).flatten();
        by_leaders.unwrap_or_else(|| Route::of_each(&ranks, me))
    }
}

impl Leaders {
    /// The messages of this rank, the member of this index.
    pub(crate) fn route(&self, me: usize) -> Option<Route> {
        let own = self.own_members();
        let at = own.iter().position(|member| member.index() == me)?;
        let mut teams = own.chunks(TEAM);
        let team = teams.nth(at / TEAM)?;
        let (incoming, outgoing) = match (&self.duty, at % TEAM) {
            (Some(duty), _) => self.of_leader(&duty.of_words, team, teams),
            (None, 0) => self.of_first(team),
            (None, _) => {
                let first = self.rank(team[0]);
                let spread = RouteIn { from: first, tag: SPREAD, of: self.everyone() };
                let of = [me].into();
                let gather = RouteOut { after: 0, to: [first].into(), tag: GATHER, of };
                (vec![spread], vec![gather])
            }
        };
        let (incoming, outgoing) = (incoming.into(), outgoing.into());
        Some(Route { incoming, outgoing, is_of_each: false, patience: self.patience() })
    }

    /// Those of a leader, of whose node these are the other teams.
    fn of_leader<'a>(
        &self,
        Messages { schedule, receivers }: &Messages,
        team: &[Rank],
        others: impl Iterator<Item = &'a [Rank]>,
    ) -> (Vec<RouteIn>, Vec<RouteOut>) {
        let mut incoming = self.gather(team);
        incoming.extend(others.map(|team| {
            let of = team.iter().map(|member| member.index()).collect();
            RouteIn { from: self.rank(team[0]), tag: GATHER, of }
        }));
        let gathered = incoming.len();
        let within: Arc<[Rank]> = incoming.iter().map(|incoming| incoming.from).collect();
        incoming.extend(schedule.incoming.iter().map(|incoming| {
            let of = self.members(incoming.of).collect();
            RouteIn { from: self.leader(incoming.from), tag: incoming.tag, of }
        }));
        let between = schedule.outgoing.iter().zip(receivers).map(|(outgoing, to)| {
            let (after, of) = (gathered + outgoing.after, self.members(outgoing.of).collect());
            RouteOut { after, to: Arc::clone(to), tag: outgoing.tag, of }
        });
        let mut outgoing: Vec<RouteOut> = between.collect();
        outgoing.extend(self.spread(incoming.len(), within));
        (incoming, outgoing)
    }

    /// Those of the first of a team that is not the leader.
    fn of_first(&self, team: &[Rank]) -> (Vec<RouteIn>, Vec<RouteOut>) {
        let leader = self.locals[0];
        let mut incoming = self.gather(team);
        let within = incoming.iter().map(|incoming| incoming.from).collect();
        let of: Box<[usize]> = team.iter().map(|member| member.index()).collect();
        let gather = RouteOut { after: incoming.len(), to: [leader].into(), tag: GATHER, of };
        incoming.push(RouteIn { from: leader, tag: SPREAD, of: self.everyone() });
        let spread = self.spread(incoming.len(), within);
        (incoming, std::iter::once(gather).chain(spread).collect())
    }

    /// What the others of a team tell the first of it.
    fn gather(&self, team: &[Rank]) -> Vec<RouteIn> {
        let of_one = |member: &Rank| {
            let of = [member.index()].into();
            RouteIn { from: self.rank(*member), tag: GATHER, of }
        };
        team[1..].iter().map(of_one).collect()
    }

    fn spread(&self, after: usize, to: Arc<[Rank]>) -> Option<RouteOut> {
        (!to.is_empty()).then(|| RouteOut { after, to, tag: SPREAD, of: self.everyone() })
    }

    fn everyone(&self) -> Box<[usize]> {
        (0..self.ranks.len()).collect()
    }

    fn rank(&self, member: Rank) -> Rank {
        self.ranks[member.index()]
    }
}
