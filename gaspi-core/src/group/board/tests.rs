//! Commits of ranks whose messages are delivered by hand: in order between two ranks, and in any
//! order else, as a seed says.

use super::*;
use crate::control::leaders::Leaders;
use crate::group::FIRST_INCARNATION;
use crate::policy::rank_tree::Order;
use crate::policy::schedule::Pattern;
use std::collections::VecDeque;

mod questions;
mod recommits;

const GROUP: GroupId = GroupId(1);

/// Numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % end as u64) as usize
    }
}

/// How the members of a commit stand with it.
#[derive(Debug, Clone, PartialEq)]
enum End {
    Agreed(u32),
    Failed(String),
}

/// Whether it asks or answers.
fn is_question(message: &GroupMessage) -> bool {
    matches!(message, GroupMessage::Digest(digest) if digest.tag >= COMMIT_TAGS)
}

struct Job {
    boards: Vec<Board>,
    /// The node of each rank, and whether leaders tell along a tree.
    nodes: Vec<u32>,
    is_tree: bool,
    under_way: BTreeMap<(usize, usize), VecDeque<GroupMessage>>,
    /// What a rank has sent another one since its commit of this number, but for questions.
    kept: BTreeMap<(usize, usize), Vec<(u64, GroupMessage)>>,
    /// Messages to ranks of other nodes, by sender.
    sent: Vec<usize>,
    /// Messages of whatever kind, and the most commits that one told of.
    posted: usize,
    longest: usize,
    has_left: Vec<bool>,
}

impl Job {
    fn new(nodes: Vec<u32>, is_tree: bool) -> Job {
        let boards = (0..nodes.len()).map(|me| Board::new(Rank(me as u16), 2)).collect();
        let sent = vec![0; nodes.len()];
        let (under_way, kept) = (BTreeMap::new(), BTreeMap::new());
        let has_left = vec![false; nodes.len()];
        let (posted, longest) = (0, 0);
        Job { boards, nodes, is_tree, under_way, kept, sent, posted, longest, has_left }
    }

    fn route(&self, list: &[Rank], me: usize) -> Route {
        let order = Order::new(list.iter().map(|rank| u64::from(self.nodes[rank.index()])));
        let me = list.iter().position(|rank| rank.index() == me).expect("a member");
        let saves = match order.nodes() {
            1 => list.len() > 4,
            count => count > 3 || count < list.len(),
        };
        let pattern = if self.is_tree { Pattern::Tree } else { Pattern::Dissemination };
        let leaders = || Leaders::new(&list.into(), order, me, (pattern, 0)).route(me);
        saves.then(leaders).flatten().unwrap_or_else(|| Route::of_each(list, me))
    }

    /// Has a rank send what is due.
    fn post(&mut self, me: usize) {
        let mut goes_on = false;
        while let Some(next) = self.boards[me].next_due(GROUP, goes_on) {
            let Outbound { attempt, to, message } = next;
            goes_on = true;
            let is_question = is_question(&message);
            for to in to.iter().map(|rank| rank.index()).filter(|to| *to != me) {
                self.posted += 1;
                self.longest = self.longest.max(match &message {
                    GroupMessage::Digest(digest) => digest.commits.len(),
                    GroupMessage::Announce(announce) => announce.ranks.len(),
                    _ => 0,
                });
                self.sent[me] += usize::from(self.nodes[to] != self.nodes[me]);
                if !is_question {
                    self.kept.entry((me, to)).or_default().push((attempt, message.clone()));
                }
                self.under_way.entry((me, to)).or_default().push_back(message.clone());
            }
        }
    }

    fn begin(&mut self, me: usize, list: &[Rank]) {
        let route = self.route(list, me);
        self.boards[me].begin(GROUP, list, || route);
        self.post(me);
    }

    /// Whether what a rank has asked is under way.
    fn is_asking(&self, me: usize) -> bool {
        let mut messages = (0..self.boards.len()).filter_map(|to| self.under_way.get(&(me, to)));
        messages.any(|messages| messages.iter().any(is_question))
    }

    /// A rank has waited for long, since it began or since it asked last.
    fn ask(&mut self, me: usize) {
        if let Some(attempt) = &mut self.boards[me].own(GROUP).attempt {
            attempt.asked = None;
        }
        self.boards[me].ask(GROUP);
        self.post(me);
    }

    /// A rank sends its list to all.
    fn tell_all(&mut self, me: usize) {
        self.boards[me].own(GROUP).tell_all();
        self.post(me);
    }

    /// A rank asks all for their commits.
    fn collect(&mut self, me: usize) {
        self.boards[me].collect_all(GROUP);
        self.post(me);
    }

    /// A rank leaves, and handles no message any more.
    fn leave(&mut self, me: usize) {
        self.boards[me].leave(GROUP);
        self.post(me);
        self.has_left[me] = true;
    }

    /// Whether a rank knows that another one has left: in memory at once, from another node behind
    /// all that this has sent.
    fn knows_left(&self, me: usize, rank: usize) -> bool {
        let has_read = || self.under_way.get(&(rank, me)).is_none_or(VecDeque::is_empty);
        self.has_left[rank] && (self.nodes[rank] == self.nodes[me] || has_read())
    }

    /// A rank that waits for long sees who has left.
    fn look_for_left(&mut self, me: usize) {
        let left: Vec<bool> = (0..self.boards.len()).map(|it| self.knows_left(me, it)).collect();
        let has_left = |rank: Rank| left[rank.index()];
        if self.boards[me].has_to_collect(GROUP, has_left) {
            self.boards[me].collect_of_left(GROUP, has_left);
            self.post(me);
        }
    }

    /// Delivers the next message of one of the pairs, if there is any.
    fn deliver(&mut self, random: &mut Random) -> bool {
        self.under_way.retain(|_, messages| !messages.is_empty());
        if self.under_way.is_empty() {
            return false;
        }
        let at = random.below(self.under_way.len());
        let Some((pair, messages)) = self.under_way.iter_mut().nth(at) else { return false };
        let ((from, to), message) = (*pair, messages.pop_front());
        if self.has_left[to] {
            return true;
        }
        let (peer, board) = (Rank(from as u16), &mut self.boards[to]);
        match message.expect("it is not empty") {
            GroupMessage::Announce(announce) => board.announced(peer, announce),
            GroupMessage::Digest(digest) => {
                if board.digested(peer, digest) {
                    let again = self.kept.get(&(to, from)).into_iter().flatten();
                    let again = again.map(|(_, message)| message.clone());
                    self.under_way.entry((to, from)).or_default().extend(again);
                }
            }
            GroupMessage::Withdraw { group, attempt } => board.withdrawn(peer, group, attempt),
            GroupMessage::Abort { group, attempt, round, dead, reason } => {
                let abort = Abort { reporter: peer, dead, reason };
                board.aborted(peer, group, attempt, round, &abort);
            }
            other => panic!("no message of a commit: {other:?}"),
        }
        self.post(to);
        true
    }

    /// The end of a rank's commit, if it has come to one.
    fn end(&mut self, me: usize) -> Option<End> {
        let left: Vec<Option<(Commit, u64)>> = (0..self.boards.len())
            .map(|rank| self.knows_left(me, rank).then(|| self.boards[rank].last_commit(GROUP)))
            .collect();
        let last_commit = |rank: Rank| left[rank.index()];
        let end = match self.boards[me].standing(GROUP, |_| false, |_| false, last_commit) {
            Standing::Waiting(missing) => {
                let has_read =
                    |rank| self.under_way.get(&(rank, me)).is_none_or(VecDeque::is_empty);
                let gives_up = |rank: &Rank| self.has_left[rank.index()] && has_read(rank.index());
                let given_up = missing.into_iter().find(gives_up);
                assert_eq!(given_up, None, "{me} gives up one that has left and told it nothing");
                self.post(me);
                return None;
            }
            Standing::Agreed(incarnation) => {
                let number = self.boards[me].agreed(GROUP, incarnation).expect("one is under way");
                self.post(me);
                for ((from, _), kept) in &mut self.kept {
                    kept.retain(|(attempt, _)| *from != me || *attempt >= number);
                }
                End::Agreed(incarnation)
            }
            Standing::Differs(reason) | Standing::Aborted(Abort { reason, .. }) => {
                self.boards[me].fail(GROUP, None, Some(reason.clone()));
                self.post(me);
                End::Failed(reason)
            }
            Standing::Unreachable(error) => panic!("{error}"),
        };
        Some(end)
    }
}

fn ranks(of: impl Iterator<Item = usize>) -> Arc<[Rank]> {
    of.map(|rank| Rank(rank as u16)).collect()
}

/// Ranks commit one list after the other, each as fast as it can, with or without a step between.
struct Script {
    job: Job,
    lists: Vec<Arc<[Rank]>>,
    /// By rank: the list it has begun or begins next, and the ends of all before.
    at: Vec<usize>,
    has_begun: Vec<bool>,
    ends: Vec<Vec<Option<u32>>>,
    /// Whether ranks sometimes send their lists to all, and collect the commits of all.
    tells_all: bool,
    /// Ranks that leave behind their last commit, or once they have begun it.
    leaves: Vec<bool>,
}

impl Script {
    fn new(job: Job, lists: Vec<Arc<[Rank]>>) -> Script {
        let n = job.nodes.len();
        let ends = vec![vec![None; lists.len()]; n];
        let (at, has_begun, tells_all) = (vec![0; n], vec![false; n], false);
        let leaves = vec![false; n];
        let mut script = Script { job, lists, at, has_begun, ends, tells_all, leaves };
        (0..n).for_each(|me| script.skip(me));
        script
    }

    fn skip(&mut self, me: usize) {
        let is_mine = |list: &Arc<[Rank]>| list.contains(&Rank(me as u16));
        while self.lists.get(self.at[me]).is_some_and(|list| !is_mine(list)) {
            self.at[me] += 1;
        }
    }

    /// Something that a rank may do next; whether it had an effect.
    fn act(&mut self, random: &mut Random, patience: usize) {
        let me = random.below(self.at.len());
        let at = self.at[me];
        if self.job.has_left[me] {
            return;
        }
        let is_last = !self.lists.iter().skip(at + 1).any(|it| it.contains(&Rank(me as u16)));
        let may_leave = at == self.lists.len() || is_last && self.has_begun[me];
        if self.leaves[me] && may_leave && random.below(4) == 0 {
            return self.job.leave(me);
        }
        let Some(list) = self.lists.get(at).cloned() else { return };
        self.job.look_for_left(me);
        if !self.has_begun[me] {
            // Some have met in between: all members have seen the end of the one before.
            let before = (0..at).rev().find(|at| self.ends[me][*at].is_some());
            if let Some(before) = before
                && self.lists[before].iter().all(|rank| self.ends[rank.index()][before].is_some())
                && let Some(incarnation) = self.ends[me][before]
                && random.below(2) == 0
            {
                self.job.boards[me].all_know(GROUP, incarnation);
            }
            self.job.begin(me, &list);
            self.has_begun[me] = true;
        } else if random.below(patience) == 0 && !self.job.is_asking(me) {
            self.job.ask(me);
        } else if self.tells_all && random.below(patience.saturating_mul(50)) == 0 {
            match random.below(2) {
                0 => self.job.tell_all(me),
                _ => self.job.collect(me),
            }
        }
        if let Some(end) = self.job.end(me) {
            let End::Agreed(incarnation) = end else { panic!("rank {me}, commit {at}: {end:?}") };
            self.ends[me][at] = Some(incarnation);
            (self.at[me], self.has_begun[me]) = (at + 1, false);
            self.skip(me);
        }
    }

    fn is_over(&self) -> bool {
        let mut ranks = self.at.iter().zip(&self.job.has_left);
        ranks.all(|(at, has_left)| *has_left || *at == self.lists.len())
    }

    fn run(&mut self, random: &mut Random, patience: usize, what: &str) {
        for _ in 0..1_000_000 {
            if self.is_over() {
                break;
            }
            if random.below(2) == 0 {
                self.job.deliver(random);
            } else {
                self.act(random, patience);
            }
        }
        assert!(self.is_over(), "{what}: hangs at {:?} of {:?}", self.at, self.lists);
        for (at, list) in self.lists.iter().enumerate() {
            let ends = list.iter().map(|rank| (self.job.has_left[rank.index()], rank.index()));
            let ends = ends.map(|(has_left, rank)| (has_left, self.ends[rank][at]));
            let ends = ends.filter(|(has_left, end)| !has_left || end.is_some());
            let ends: Vec<_> = ends.map(|(_, end)| end).collect();
            assert!(ends.iter().all(|end| *end == ends[0]), "{what}, commit {at}: {ends:?}");
        }
        for ends in &self.ends {
            let ends: Vec<u32> = ends.iter().flatten().copied().collect();
            assert!(ends.is_sorted_by(|one, next| one < next), "{what}: {ends:?}");
        }
    }
}

#[test]
fn all_agree_on_each_of_many_commits_of_one_id() {
    for seed in 0..400 {
        let mut random = Random(seed);
        let n = 2 + random.below(7);
        let nodes: Vec<u32> = (0..n).map(|_| random.below(4) as u32).collect();
        let job = Job::new(nodes.clone(), random.below(2) == 0);
        let lists = some_lists(&mut random, n);
        let patience = [3, 30, 3000][random.below(3)];
        let what = format!("seed {seed}, nodes {nodes:?}, patience {patience}");
        let mut script = Script::new(job, lists);
        script.tells_all = seed % 4 == 0;
        script.run(&mut random, patience, &what);
    }
}

/// Lists of some of these ranks, often the same one again.
fn some_lists(random: &mut Random, n: usize) -> Vec<Arc<[Rank]>> {
    let mut lists: Vec<Arc<[Rank]>> = Vec::new();
    for _ in 0..12 {
        match lists.last() {
            Some(last) if random.below(3) > 0 => lists.push(Arc::clone(last)),
            _ => {
                let least = random.below(3);
                let is_in: Vec<bool> = (0..n).map(|_| random.below(3) >= least).collect();
                let list = ranks((0..n).filter(|rank| is_in[*rank]));
                lists.push(if list.is_empty() { ranks(0..n) } else { list });
            }
        }
    }
    lists
}

#[test]
fn messages_are_few_where_nobody_is_late() {
    for (nodes, each) in [(2, 2), (3, 2), (4, 1), (5, 3), (8, 1), (16, 5), (64, 1)] {
        for is_tree in [false, true] {
            let n = nodes * each;
            let scattered = (0..n).map(|rank| (rank % nodes) as u32).collect();
            let lists = vec![ranks(0..n); 3];
            let mut script = Script::new(Job::new(scattered, is_tree), lists);
            let what = format!("{nodes} nodes of {each}, tree {is_tree}");
            script.run(&mut Random(7), usize::MAX, &what);
            let (leaders, others) = script.job.sent.split_at(nodes);
            assert!(others.iter().all(|sent| *sent == 0), "{what}: {:?}", script.job.sent);
            let rounds = nodes.next_power_of_two().trailing_zeros() as usize;
            let all: usize = leaders.iter().sum();
            let expected = if is_tree { 2 * (nodes - 1) } else { nodes * rounds };
            assert_eq!(all, 3 * expected, "{what}");
            assert!(is_tree || leaders.iter().all(|sent| *sent == 3 * rounds), "{what}");
        }
    }
}

/// One of them commits another list, and tells all whom it lists; then all commit the same.
#[test]
fn a_list_that_differs_fails_on_all_and_the_next_one_succeeds() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let n = 4 + random.below(5);
        let nodes: Vec<u32> = (0..n).map(|rank| rank as u32 % 3).collect();
        let mut job = Job::new(nodes, random.below(2) == 0);
        let whole = ranks(0..n - 1);
        let is_patient = random.below(2) == 0;
        let patience = if is_patient { usize::MAX } else { 100 };
        for round in 0..4 {
            let what = format!("seed {seed}, round {round}");
            let odd = random.below(n - 1);
            if is_patient && odd % 3 == (n - 1) % 3 {
                // As a leader it waits for the one that never commits, and has nothing to tell.
                continue;
            }
            let list_of = |me| if me == odd { ranks(0..n) } else { Arc::clone(&whole) };
            let lists: Vec<_> = (0..n - 1).map(list_of).collect();
            for (differs, lists) in [(true, lists), (false, vec![Arc::clone(&whole); n - 1])] {
                let mut ends = vec![None; n - 1];
                let mut begun = vec![false; n - 1];
                for _ in 0..200_000 {
                    let me = random.below(n - 1);
                    if random.below(2) == 0 {
                        job.deliver(&mut random);
                    } else if ends[me].is_none() {
                        if !std::mem::replace(&mut begun[me], true) {
                            job.begin(me, &lists[me]);
                        } else if random.below(patience) == 0 {
                            job.ask(me);
                        }
                        ends[me] = job.end(me);
                    }
                    if ends.iter().all(Option::is_some) {
                        break;
                    }
                }
                while job.deliver(&mut random) {}
                for (me, end) in ends.iter().enumerate() {
                    match end {
                        Some(End::Failed(why)) if differs => {
                            assert!(why.contains(&list(&whole)), "{what}, rank {me}: {why}");
                        }
                        Some(End::Agreed(_)) if !differs => assert_eq!(end, &ends[0], "{what}"),
                        other => panic!("{what}, rank {me}, differs {differs}: {other:?}"),
                    }
                }
            }
        }
    }
}

/// A member gives up before the last one has begun, and commits again.
#[test]
fn a_commit_that_was_given_up_does_not_count() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let n = 4 + random.below(5);
        let nodes: Vec<u32> = (0..n).map(|rank| rank as u32 % 3).collect();
        let mut job = Job::new(nodes, random.below(2) == 0);
        let whole = ranks(0..n);
        for round in 0..4 {
            let (gives_up, late) = (random.below(n), random.below(n));
            if gives_up == late {
                continue;
            }
            (0..n).filter(|me| *me != late).for_each(|me| job.begin(me, &whole));
            for _ in 0..random.below(60) {
                job.deliver(&mut random);
            }
            job.boards[gives_up].withdraw(GROUP);
            job.post(gives_up);
            while job.deliver(&mut random) {}
            assert!((0..n).all(|me| job.end(me).is_none()), "seed {seed}: one has not begun");
            job.begin(late, &whole);
            while job.deliver(&mut random) {}
            assert!(job.end(late).is_none(), "seed {seed}, round {round}: one has given up");
            job.begin(gives_up, &whole);
            while job.deliver(&mut random) {}
            let ends: Vec<_> = (0..n).map(|me| job.end(me)).collect();
            assert!(matches!(ends[0], Some(End::Agreed(_))), "seed {seed}: {ends:?}");
            assert!(ends.iter().all(|end| *end == ends[0]), "seed {seed}: {ends:?}");
        }
    }
}

impl Job {
    fn expect_agreed(&mut self, members: &[usize]) {
        for me in members {
            assert!(matches!(self.end(*me), Some(End::Agreed(_))), "rank {me} has not committed");
        }
    }
}

/// What leaders have told a node is lost, and its leader asks for it.
#[test]
fn members_that_have_committed_answer_one_that_has_not() {
    for others_go_on in [false, true] {
        let mut random = Random(3);
        let mut job = Job::new(vec![0, 0, 1, 1, 2, 2, 3], false);
        let list = ranks(0..4);
        (0..4).for_each(|me| job.begin(me, &list));
        // Until the first node has committed; of the second one, only its members know.
        let mut lost = VecDeque::new();
        while job.under_way.values().any(|messages| !messages.is_empty()) {
            lost.extend(job.under_way.remove(&(0, 2)).unwrap_or_default());
            job.deliver(&mut random);
        }
        job.expect_agreed(&[0, 1]);
        assert!(job.end(2).is_none() && job.end(3).is_none(), "their leader knows of none");
        if others_go_on {
            // With members that know nothing of the first list.
            let next: Arc<[Rank]> = [0, 4, 5, 6].map(Rank).into();
            [0, 4, 5, 6].into_iter().for_each(|me| job.begin(me, &next));
            while job.deliver(&mut random) {}
            job.expect_agreed(&[0, 4, 5, 6]);
        }
        job.ask(2);
        while job.deliver(&mut random) {}
        job.expect_agreed(&[2, 3]);
        if !others_go_on {
            // What comes late does not count for the next one, which goes by leaders again.
            job.under_way.insert((0, 2), lost);
            while job.deliver(&mut random) {}
            (0..4).for_each(|me| job.boards[me].all_know(GROUP, FIRST_INCARNATION));
            let sent: usize = job.sent.iter().sum();
            (0..4).for_each(|me| job.begin(me, &list));
            while job.deliver(&mut random) {}
            job.expect_agreed(&[0, 1, 2, 3]);
            assert_eq!(job.sent.iter().sum::<usize>() - sent, 2, "one by each leader");
        }
    }
}

#[test]
fn messages_that_come_twice_count_once() {
    for seed in 0..100 {
        let mut random = Random(seed);
        let mut job = Job::new(vec![0, 1, 2, 3, 0, 1], false);
        let whole = ranks(0..6);
        for _ in 0..4 {
            (0..6).for_each(|me| job.begin(me, &whole));
            // As a connection that broke sends again what may be lost.
            for messages in job.under_way.values_mut() {
                let again = messages.clone();
                messages.extend(again);
            }
            while job.deliver(&mut random) {}
            let ends: Vec<_> = (0..6).map(|me| job.end(me)).collect();
            assert!(matches!(ends[0], Some(End::Agreed(_))), "seed {seed}: {ends:?}");
            assert!(ends.iter().all(|end| *end == ends[0]), "seed {seed}: {ends:?}");
        }
    }
}
