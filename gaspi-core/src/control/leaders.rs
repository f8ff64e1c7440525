//! Steps of groups that span nodes: the first member of each node, its leader, speaks for it.
//!
//! Within a node members see each other's arrival slots. Once all of a node have arrived its leader
//! exchanges messages with other leaders, as its [`Schedule`] says, until it knows that all members
//! have. Messages carry the signature of the step, and a line of each member that they tell of: the
//! words of its arrival and what it has staged, if there are any. The leader then publishes the
//! lines ([`SharedArea::lines`]), and the step in its mark ([`SharedArea::has_exchanged`]), for the
//! members of its node. Handlers of messages pass them on, also while the program computes.
//!
//! All this is a shortcut. A member tells all of its arrival if it reports a failure, waits for
//! long, times out, or sees that another one called something else. So does each member that has
//! arrived once it hears such an arrival. These arrivals travel along a [tree](RankTree) of the
//! members, in which each passes on what it hears for the first time. Where leaders tell each other
//! in rounds its edges between nodes are among those that their messages take, so that no
//! connection is made for it; along their own tree a leader gets one for each power of two at most,
//! and the root, which has most, none. If a member
//! leaves that others still count on, its neighbours send what they know of the step along the tree
//! of those that stay. Where lines would be too long, each member sends its arrival to each of
//! other nodes instead.
//!
//! A rank that leaves says at which step it has arrived last: whether the others still may know
//! all to have arrived at theirs. That goes to all ranks, along with the news that it leaves.
//!
//! [`SharedArea::lines`]: crate::transport::shm::area::SharedArea::lines
//! [`SharedArea::has_exchanged`]: crate::transport::shm::area::SharedArea::has_exchanged

pub(crate) mod crowded;
mod procedures;
pub(crate) mod route;

use crate::ids::{GroupId, Rank};
use crate::policy::rank_tree::{Order, RankTree};
use crate::policy::schedule::{Nodes, Pattern, Schedule, TAGS};
use crate::ranks::Ranks;
use crate::remote_arrivals::incarnation;
use crate::sync::Mutex;
use crate::sync::arrival_slot::PAYLOAD_WORDS;
use crate::wire::message::{Arrival, LastStep, Lines};
use crate::wire::shared_layout::lines_bytes;
use crowded::is_crowded;
use route::Route;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// A rank waits so long for each member before it sends its arrival to all.
const PATIENCE: Duration = Duration::from_millis(1);

/// Lines of up to so many words go along a tree where members share cores. Longer ones hold what
/// members have staged; from the root they would go to all in messages of all lines.
const WORDS_BY_TREE: usize = PAYLOAD_WORDS;

/// Tags from here on are those of chunks that members send each other (`control/chunks.rs`).
pub(super) const CHUNK_TAGS: u8 = TAGS as u8;

/// How long the lines are that leaders tell of each member, in words.
#[derive(Debug, Clone, Copy)]
pub(super) struct LineWidth {
    /// Those of the arrival slot, and what is staged, which follows them.
    pub(super) words: usize,
    pub(super) staged: usize,
}

impl LineWidth {
    pub(super) fn all(self) -> usize {
        self.words + self.staged
    }
}

/// The nodes of a group, and the place of this rank among them.
#[derive(Debug)]
pub(crate) struct Leaders {
    ranks: Arc<[Rank]>,
    /// The members of this rank's node.
    locals: Box<[Rank]>,
    /// What this rank does if it is the leader of its node.
    duty: Option<Duty>,
    /// Words of lines that there is room for.
    room: usize,
    /// Of the members, by their index; and who is of which node.
    tree: RankTree,
    /// The neighbours in it among those that take part as of these
    /// [`known_ends`](crate::ranks::Ranks::known_ends).
    neighbours: Mutex<Option<Neighbours>>,
}

/// What a leader does.
#[derive(Debug)]
struct Duty {
    of_words: Messages,
    of_stages: Messages,
}

impl Duty {
    /// The messages of a step with lines of so many words.
    fn messages(&self, width: usize) -> &Messages {
        if width > WORDS_BY_TREE { &self.of_stages } else { &self.of_words }
    }
}

/// As of which ends, and who.
type Neighbours = ((u64, u64), Arc<[Rank]>);

/// The messages of a leader, and who gets those that it sends.
#[derive(Debug)]
struct Messages {
    schedule: Schedule,
    receivers: Box<[Arc<[Rank]>]>,
}

/// Where the members of a group are.
struct Places<'a> {
    job: &'a Ranks,
    ranks: &'a Arc<[Rank]>,
    /// By the index of a member.
    order: Arc<Order>,
}

impl<'a> Places<'a> {
    fn of(job: &'a Ranks, ranks: &'a Arc<[Rank]>) -> Places<'a> {
        let cards = &job.cards;
        let order = if ranks.len() == cards.len() && ranks.is_sorted() {
            // All, whose indexes are their numbers.
            Arc::clone(job.order())
        } else {
            Order::new(ranks.iter().map(|rank| cards.at(*rank).node()))
        };
        Places { job, ranks, order }
    }

    /// Whether messages by leaders are fewer than those of each to each of other nodes. Of three
    /// nodes with a member each, all tell all by as few as leaders would.
    fn leaders_save(&self) -> bool {
        let count = self.order.nodes();
        let is_one_each = count == self.ranks.len();
        count > 3 || count > 1 && !is_one_each || count == 3 && self.is_crowded()
    }

    fn is_crowded(&self) -> bool {
        is_crowded(self.job, self.ranks)
    }

    /// The leaders as the member `me` sees them, with room for so many words of lines.
    fn leaders(self, me: usize, room: usize) -> Leaders {
        let pattern = Pattern::of(self.order.nodes(), || self.is_crowded());
        Leaders::new(self.ranks, self.order, me, (pattern, room))
    }
}

impl Leaders {
    /// Those of a group, if they save messages; all members come to the same.
    pub(crate) fn of(
        job: &Ranks,
        ranks: &Arc<[Rank]>,
        me: usize,
        group: GroupId,
    ) -> Option<Leaders> {
        let places = Places::of(job, ranks);
        let room = lines_bytes(job.cards.len(), group.index()) / size_of::<u64>();
        places.leaders_save().then(|| places.leaders(me, room))
    }

    /// The messages of a commit of the member `me`.
    pub(crate) fn route_of(job: &Ranks, ranks: &Arc<[Rank]>, me: usize) -> Route {
        Places::of(job, ranks).route(me)
    }

    pub(crate) fn new(
        ranks: &Arc<[Rank]>,
        order: Arc<Order>,
        me: usize,
        (pattern, room): (Pattern, usize),
    ) -> Leaders {
        let tree = RankTree::of(order, Rank(me as u16));
        let (order, node) = (tree.order(), tree.node());
        let n = order.nodes();
        let rank = |member: Rank| ranks[member.index()];
        let own = order.of_node(node);
        let locals = own.iter().map(|member| rank(*member)).collect();
        let leads = own[0].index() == me;
        let messages = |schedule: Schedule| {
            let leader = |node: &usize| rank(order.of_node(*node)[0]);
            let receivers = |to: &[usize]| to.iter().map(leader).collect();
            let receivers = schedule.outgoing.iter().map(|outgoing| receivers(&outgoing.to));
            Messages { receivers: receivers.collect(), schedule }
        };
        let duty = leads.then(|| Duty {
            of_words: messages(pattern.schedule(n, node)),
            of_stages: messages(Pattern::Dissemination.schedule(n, node)),
        });
        let (ranks, neighbours) = (Arc::clone(ranks), Mutex::default());
        Leaders { ranks, locals, duty, room, tree, neighbours }
    }

    /// To whom this rank passes on arrivals, as of these ends: its neighbours in the tree of the
    /// members that take part.
    pub(super) fn neighbours(
        &self,
        ends: (u64, u64),
        takes_part: impl Fn(Rank) -> bool,
    ) -> Arc<[Rank]> {
        let mut known = self.neighbours.lock();
        if let Some((as_of, neighbours)) = &*known
            && *as_of == ends
        {
            return Arc::clone(neighbours);
        }
        let lives = |member: Rank| takes_part(self.ranks[member.index()]);
        let (parent, children) = (self.tree.parent(lives), self.tree.children(lives));
        let members = parent.into_iter().chain(children);
        let neighbours: Arc<[Rank]> = members.map(|member| self.ranks[member.index()]).collect();
        *known = Some((ends, Arc::clone(&neighbours)));
        neighbours
    }

    /// With whom this rank exchanges messages of a step without staging as the leader of its node.
    pub(crate) fn partners(&self) -> Vec<Rank> {
        let Some(duty) = &self.duty else { return Vec::new() };
        let Messages { schedule, receivers } = &duty.of_words;
        let senders = schedule.incoming.iter().map(|incoming| self.leader(incoming.from));
        let mut partners: Vec<Rank> =
            senders.chain(receivers.iter().flat_map(|to| to.iter().copied())).collect();
        partners.sort_unstable();
        partners.dedup();
        partners
    }

    /// The members of this rank's node, by their index.
    fn own_members(&self) -> &[Rank] {
        self.tree.order().of_node(self.tree.node())
    }

    /// The members of this rank's node, its leader first.
    pub(crate) fn locals(&self) -> &[Rank] {
        &self.locals
    }

    /// Whether this rank is the leader of its node.
    pub(crate) fn leads(&self) -> bool {
        self.duty.is_some()
    }

    /// Whether there is room for lines of so many words for each member.
    pub(super) fn may_tell(&self, width: LineWidth) -> bool {
        width.all() * self.ranks.len() <= self.room
    }

    /// How long a member waits before it sends its arrival to all.
    pub(crate) fn patience(&self) -> Duration {
        PATIENCE * self.ranks.len() as u32
    }

    fn leader(&self, node: usize) -> Rank {
        self.ranks[self.tree.order().of_node(node)[0].index()]
    }

    /// The members of some nodes, in the order of their lines.
    fn members(&self, nodes: Nodes) -> impl Iterator<Item = usize> {
        let order = self.tree.order();
        let members = nodes.iter(order.nodes()).flat_map(|node| order.of_node(node));
        members.map(|member| member.index())
    }
}

/// The last step of each parity: a member may be one step ahead of another.
type Steps = [u64; 2];

fn parity(step: u64) -> usize {
    (step % 2) as usize
}

/// Notes a step; an earlier one changes nothing.
fn note(steps: &mut Steps, step: u64) {
    let last = &mut steps[parity(step)];
    *last = step.max(*last);
}

fn has(steps: &Steps, step: u64) -> bool {
    steps[parity(step)] == step
}

/// The leaders of a use of a group's id, by its incarnation.
#[derive(Debug, Default)]
struct Use {
    incarnation: u32,
    leaders: Option<Arc<Leaders>>,
}

/// What a leader has told this one, of the last step of a parity.
#[derive(Debug, Default)]
struct Received {
    step: u64,
    signature: u64,
    lines: Vec<u64>,
}

/// What this rank knows as the leader of its node at a step at which all of the node have arrived.
#[derive(Debug, Default)]
struct LeaderState {
    step: u64,
    signature: u64,
    /// Words of each member's line, and the lines of all members that are known.
    width: usize,
    lines: Vec<u64>,
    /// Incoming messages that are in, and outgoing ones that are out.
    ready: usize,
    sent: usize,
    complete: bool,
}

/// An arrival of this rank, and how long lines are at that step.
#[derive(Debug, Clone)]
struct Own {
    arrival: Arrival,
    width: LineWidth,
}

/// What one rank knows of the steps of a group. Steps only grow.
#[derive(Debug, Default)]
struct State {
    /// The present use and the one before, of which messages may still come.
    uses: [Use; 2],
    /// Steps at which this rank has arrived, has sent its arrival to all, and which it has left.
    arrived: Steps,
    told_all: Steps,
    ended: u64,
    /// Its arrivals that go by leaders.
    own: [Option<Own>; 2],
    /// Steps at which another member has sent its arrival to all.
    heard: Steps,
    of_leader: [LeaderState; 2],
    /// By sender and tag.
    incoming: HashMap<(Rank, u8), [Received; 2]>,
    /// Where ranks are that leave.
    left: BTreeMap<Rank, LastStep>,
}

impl State {
    /// The leaders of the use that a step belongs to.
    fn leaders(&self, step: u64) -> Option<Arc<Leaders>> {
        let of_step = |usage: &&Use| usage.incarnation <= incarnation(step);
        self.uses.iter().find(of_step)?.leaders.clone()
    }

    fn own(&self, step: u64) -> Option<&Own> {
        self.own[parity(step)].as_ref().filter(|own| own.arrival.step == step)
    }

    fn received(&self, leader: Rank, tag: u8, step: u64) -> Option<&Received> {
        let of_parity = &self.incoming.get(&(leader, tag))?[parity(step)];
        (of_parity.step == step).then_some(of_parity)
    }

    /// Takes the messages that have come, as far as they are next.
    ///
    /// # Errors
    /// A leader has called something else.
    fn take(&self, of_leader: &mut LeaderState, leaders: &Leaders) -> Result<(), Differs> {
        let Some(duty) = &leaders.duty else { return Ok(()) };
        let schedule = &duty.messages(of_leader.width).schedule;
        while let Some(next) = schedule.incoming.get(of_leader.ready) {
            let found = self.received(leaders.leader(next.from), next.tag, of_leader.step);
            let Some(received) = found else { return Ok(()) };
            if received.signature != of_leader.signature {
                return Err(Differs);
            }
            let width = of_leader.width;
            // Only a faulty leader sends lines of another length.
            if received.lines.len() != width * leaders.members(next.of).count() {
                return Ok(());
            }
            if width > 0 {
                let lines = received.lines.chunks_exact(width);
                for (member, line) in leaders.members(next.of).zip(lines) {
                    of_leader.lines[member * width..][..width].copy_from_slice(line);
                }
            }
            of_leader.ready += 1;
        }
        Ok(())
    }
}

/// Another leader has called something else.
struct Differs;

/// A message about a step, and the ranks that get it.
#[derive(Debug)]
struct Outbound {
    to: Arc<[Rank]>,
    message: Lines,
}

/// What is due for a step after a change.
#[derive(Debug, Default)]
struct Due {
    outbound: Vec<Outbound>,
    tell_all: bool,
}

/// The steps of one group.
#[derive(Debug, Default)]
pub(crate) struct GroupSteps {
    state: Mutex<State>,
}

impl GroupSteps {
    /// This rank arrives at a step that goes by leaders; whether it has to send its arrival to all,
    /// as another member did.
    fn arrive(&self, arrival: Arrival, width: LineWidth) -> bool {
        let (mut state, step) = (self.state.lock(), arrival.step);
        note(&mut state.arrived, step);
        state.own[parity(step)] = Some(Own { arrival, width });
        has(&state.heard, step)
    }

    /// This rank sends its arrival at a step to all from the beginning.
    pub(super) fn arrive_directly(&self, step: u64) {
        let mut state = self.state.lock();
        note(&mut state.arrived, step);
        note(&mut state.told_all, step);
    }

    /// The arrival at a step that this rank is to tell all of, and who they are.
    fn tell_all(&self, step: u64) -> Option<(Arc<Leaders>, Arrival)> {
        let mut state = self.state.lock();
        let own = state.own(step)?.arrival.clone();
        note(&mut state.told_all, step);
        Some((state.leaders(step)?, own))
    }

    /// The leaders of the use that a step belongs to.
    pub(crate) fn leaders_at(&self, step: u64) -> Option<Arc<Leaders>> {
        self.state.lock().leaders(step)
    }

    /// A member has sent its arrival to all; whether this rank has to do so too.
    pub(super) fn hear_arrival(&self, step: u64) -> bool {
        let mut state = self.state.lock();
        note(&mut state.heard, step);
        has(&state.arrived, step) && !has(&state.told_all, step)
    }

    /// A leader has told of a step.
    pub(super) fn hear(&self, peer: Rank, message: Lines) {
        let Lines { step, tag, signature, lines, .. } = message;
        if usize::from(tag) < TAGS {
            let mut state = self.state.lock();
            let of_parity = &mut state.incoming.entry((peer, tag)).or_default()[parity(step)];
            if of_parity.step < step {
                *of_parity = Received { step, signature, lines };
            }
        }
    }

    /// A rank leaves, which may be no member of this rank's use of the group.
    pub(super) fn hear_leaving(&self, peer: Rank, last: LastStep) {
        self.state.lock().left.insert(peer, last);
    }

    /// Where a rank is that leaves, if it has said so.
    fn last_of(&self, peer: Rank) -> Option<LastStep> {
        self.state.lock().left.get(&peer).copied()
    }

    /// Whether a member that has left had arrived at a step.
    pub(super) fn has_left_behind(&self, rank: Rank, step: u64) -> bool {
        let last = self.last_of(rank).map(|last| last.step);
        last.is_some_and(|last| last >= step && incarnation(last) == incarnation(step))
    }

    /// All of this rank's node, which it leads, have arrived at a step. `lines` are theirs, each of
    /// so many words.
    fn node_arrived(&self, (step, signature): (u64, u64), width: usize, own: &[u64]) {
        let mut state = self.state.lock();
        let Some(leaders) = state.leaders(step) else { return };
        let of_leader = &mut state.of_leader[parity(step)];
        if of_leader.step >= step {
            return;
        }
        let mut lines = vec![0; width * leaders.ranks.len()];
        if width > 0 {
            for (member, line) in leaders.own_members().iter().zip(own.chunks_exact(width)) {
                lines[member.index() * width..][..width].copy_from_slice(line);
            }
        }
        *of_leader = LeaderState { step, signature, width, lines, ..LeaderState::default() };
    }

    /// What is due for a step. Once all are known to have arrived, `publish` gets the lines of all,
    /// unless this rank has left the step without them.
    fn advance(&self, step: u64, publish: impl FnOnce(&Leaders, &[u64])) -> Due {
        let (mut state, mut due) = (self.state.lock(), Due::default());
        let Some(leaders) = state.leaders(step) else { return due };
        let Some(duty) = &leaders.duty else { return due };
        let mut of_leader = std::mem::take(&mut state.of_leader[parity(step)]);
        let Messages { schedule, receivers } = duty.messages(of_leader.width);
        if of_leader.step == step && state.take(&mut of_leader, &leaders).is_err() {
            due.tell_all = !has(&state.told_all, step);
        }
        if of_leader.step == step {
            while let Some(next) = schedule.outgoing.get(of_leader.sent) {
                if next.after > of_leader.ready {
                    break;
                }
                let (width, signature) = (of_leader.width, of_leader.signature);
                let line = |member: usize| &of_leader.lines[member * width..][..width];
                let lines = leaders.members(next.of).flat_map(line).copied().collect();
                let to = Arc::clone(&receivers[of_leader.sent]);
                due.outbound.push(Outbound {
                    to,
                    message: Lines { step, tag: next.tag, signature, lines },
                });
                of_leader.sent += 1;
            }
            if of_leader.ready == schedule.incoming.len() && !of_leader.complete {
                of_leader.complete = true;
                // The memory may be in use again.
                if state.ended < step || of_leader.width == 0 {
                    publish(&leaders, &of_leader.lines);
                }
            }
        }
        state.of_leader[parity(step)] = of_leader;
        due
    }

    /// This rank has left a step, whose lines it does not need any more.
    pub(super) fn end(&self, step: u64) {
        let mut state = self.state.lock();
        state.ended = state.ended.max(step);
    }

    /// A use of the group begins.
    pub(crate) fn committed(&self, incarnation: u32, leaders: Option<Arc<Leaders>>) {
        let uses = &mut self.state.lock().uses;
        uses.swap(0, 1);
        uses[0] = Use { incarnation, leaders };
    }

    /// Whether this rank has sent its arrival at `step` to all.
    pub(super) fn has_told_all(&self, step: u64) -> bool {
        has(&self.state.lock().told_all, step)
    }

    /// Whether a member, given by its index, is known to have arrived at `step`.
    pub(super) fn has_arrived(&self, step: u64, member: usize) -> bool {
        let state = self.state.lock();
        let Some(leaders) = state.leaders(step) else { return false };
        let Some(Duty { of_words, of_stages }) = &leaders.duty else { return false };
        let order = leaders.tree.order();
        let (node, n) = (order.node_of(Rank(member as u16)), order.nodes());
        [of_words, of_stages].iter().flat_map(|by| &by.schedule.incoming).any(|incoming| {
            let of_it = incoming.of.has(node, n);
            of_it && state.received(leaders.leader(incoming.from), incoming.tag, step).is_some()
        })
    }

    /// The arrivals of this rank at the last steps that have gone by leaders.
    fn last_own(&self) -> Vec<(Own, Arc<Leaders>)> {
        let state = self.state.lock();
        let own = state.own.iter().flatten();
        own.filter_map(|own| Some((own.clone(), state.leaders(own.arrival.step)?))).collect()
    }
}

/// The steps of all groups.
#[derive(Debug)]
pub(crate) struct AllGroupSteps(Box<[GroupSteps]>);

impl AllGroupSteps {
    pub(crate) fn new(groups: u32) -> AllGroupSteps {
        AllGroupSteps((0..groups).map(|_| GroupSteps::default()).collect())
    }

    #[inline]
    pub(crate) fn of(&self, group: crate::ids::GroupId) -> &GroupSteps {
        &self.0[group.index()]
    }
}

#[cfg(test)]
mod tests;
