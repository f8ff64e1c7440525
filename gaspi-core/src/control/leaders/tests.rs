//! Groups of nodes with one and with several members, whose messages are delivered by hand.

use super::*;
use crate::bootstrap::Job;
use crate::config::Config;
use crate::group::STEP_BITS;
use crate::ids::GroupId;
use crate::runtime::{PendingInit, Runtime};
use crate::timeout::Timeout;
use crate::wire::message::Commit;

const SIGNATURE: u64 = 7;
const PATTERNS: [Pattern; 2] = [Pattern::Tree, Pattern::Dissemination];
const NO_LINES: LineWidth = LineWidth { words: 0, staged: 0 };

fn order(nodes: &[u32]) -> Arc<Order> {
    Order::new(nodes.iter().map(|node| u64::from(*node)))
}

/// A member of a group, and which steps it knows to be complete.
struct Member {
    leaders: Arc<Leaders>,
    steps: GroupSteps,
    complete: Vec<u64>,
    lines: Vec<u64>,
}

struct Group {
    members: Vec<Member>,
    width: usize,
    messages: usize,
}

impl Group {
    /// Of members on these nodes, in an incarnation.
    fn new(nodes: &[u32], pattern: Pattern, (incarnation, width): (u32, usize)) -> Group {
        // Not their indices.
        let ranks: Arc<[Rank]> =
            (0..nodes.len()).map(|member| Rank(3 * member as u16 + 1)).collect();
        let members = (0..nodes.len()).map(|me| {
            let leaders = Arc::new(Leaders::new(&ranks, order(nodes), me, (pattern, 1024)));
            let steps = GroupSteps::default();
            steps.committed(incarnation, Some(Arc::clone(&leaders)));
            Member { leaders, steps, complete: Vec::new(), lines: Vec::new() }
        });
        Group { members: members.collect(), width, messages: 0 }
    }

    /// A member arrives; if it is the last one of its node, the leader goes on.
    fn arrive(&mut self, me: usize, step: u64) {
        self.arrive_calling(me, step, SIGNATURE);
    }

    fn arrive_calling(&mut self, me: usize, step: u64, signature: u64) -> bool {
        let (words, stage) = (Vec::new(), Vec::new());
        let arrival = Arrival { group: GroupId(0), step, signature, words, stage };
        self.members[me].steps.arrive(arrival, NO_LINES);
        let leaders = Arc::clone(&self.members[me].leaders);
        let node: Vec<usize> = leaders.own_members().iter().map(|member| member.index()).collect();
        let has_arrived =
            |member: &usize| has(&self.members[*member].steps.state.lock().arrived, step);
        if !node.iter().all(has_arrived) {
            return false;
        }
        let lines: Vec<u64> = node.iter().flat_map(|m| self.line(*m, step)).collect();
        let leader = &self.members[node[0]].steps;
        leader.node_arrived((step, signature), self.width, &lines);
        self.advance(node[0], step)
    }

    /// What a member publishes.
    fn line(&self, member: usize, step: u64) -> Vec<u64> {
        (0..self.width as u64).map(|word| member as u64 * 100 + word + step % 50).collect()
    }

    /// Delivers what is due, and what follows; whether one of them is to tell all.
    fn advance(&mut self, me: usize, step: u64) -> bool {
        let mut published = None;
        let due = self.members[me].steps.advance(step, |_, lines| published = Some(lines.to_vec()));
        if let Some(lines) = published {
            self.members[me].complete.push(step);
            self.members[me].lines = lines;
        }
        let sender = self.members[me].leaders.ranks[me];
        let mut tells_all = due.tell_all;
        for Outbound { to, message } in due.outbound {
            for rank in to.iter() {
                self.messages += 1;
                let to = usize::from(rank.0) / 3;
                self.members[to].steps.hear(sender, message.clone());
                tells_all |= self.advance(to, step);
            }
        }
        tells_all
    }

    /// How many leaders know a step to be complete.
    fn completed(&self, step: u64) -> usize {
        self.members.iter().filter(|member| member.complete.contains(&step)).count()
    }
}

const STEP: u64 = (1 << STEP_BITS) + 1;

#[test]
fn leaders_alone_send_messages_and_know_the_lines_of_all() {
    let uneven: Vec<u32> = (0..23).map(|member| [0, 1, 1, 2, 0, 3, 3, 3][member % 8]).collect();
    let pairs: Vec<u32> = (0..128).map(|member| member / 2).collect();
    for (nodes, n) in [(uneven, 4usize), (pairs, 64), ((0..5).collect(), 5)] {
        // Longer ones never go along a tree.
        for width in [0, 1, 6, 7, 256] {
            for pattern in PATTERNS {
                let by_tree = pattern == Pattern::Tree && width <= WORDS_BY_TREE;
                let most = if by_tree { 2 * (n - 1) } else { n * Schedule::rounds(n) };
                let mut group = Group::new(&nodes, pattern, (1, width));
                for step in STEP..STEP + 3 {
                    group.messages = 0;
                    for place in 0..nodes.len() {
                        assert_eq!(group.completed(step), 0);
                        // A permutation: 29 is prime to all the sizes.
                        group.arrive((place * 29 + step as usize) % nodes.len(), step);
                    }
                    assert_eq!(group.completed(step), n);
                    assert_eq!(group.messages, most);
                    let expected: Vec<u64> =
                        (0..nodes.len()).flat_map(|member| group.line(member, step)).collect();
                    let leaders = group.members.iter().filter(|member| member.leaders.leads());
                    assert!(leaders.filter(|leader| leader.lines == expected).count() == n);
                }
            }
        }
    }
}

#[test]
fn what_comes_before_this_rank_has_committed_the_use_is_kept() {
    let mut group = Group::new(&[0, 1, 2], Pattern::Tree, (1, 0));
    let (old, new) = (STEP + 4, (2 << STEP_BITS) + 1);
    group.arrive(0, old);
    let ranks = Arc::clone(&group.members[0].leaders.ranks);
    let up = |step| Lines { step, tag: 0, signature: SIGNATURE, lines: Vec::new() };
    for rank in &ranks[1..] {
        group.members[0].steps.hear(*rank, up(new));
        assert!(!group.advance(0, new));
    }
    let two: Arc<[Rank]> = ranks[..2].into();
    let next = Arc::new(Leaders::new(&two, order(&[0, 1]), 0, (Pattern::Tree, 1024)));
    group.members[0].steps.committed(2, Some(Arc::clone(&next)));
    assert_eq!(group.completed(new), 0);
    // Messages of the former use belong to it.
    group.members[0].steps.hear(ranks[1], up(old));
    group.advance(0, old);
    assert_eq!(group.completed(old), 0);
    group.members[0].leaders = next;
    let (words, stage) = (Vec::new(), Vec::new());
    let arrival = Arrival { group: GroupId(0), step: new, signature: SIGNATURE, words, stage };
    group.members[0].steps.arrive(arrival, NO_LINES);
    group.members[0].steps.node_arrived((new, SIGNATURE), 0, &[]);
    let mut published = false;
    group.members[0].steps.advance(new, |_, _| published = true);
    assert!(published);
}

#[test]
fn a_member_that_is_a_step_ahead_still_tells_of_the_one_before() {
    let mut group = Group::new(&[0, 1, 2, 3], Pattern::Tree, (1, 0));
    let (first, second) = (STEP, STEP + 1);
    for member in 0..3 {
        group.arrive(member, first);
    }
    // Member 3 has told all, and they have gone on, before it tells its leader's parent.
    for member in 0..3 {
        group.arrive(member, second);
    }
    assert_eq!(group.completed(first), 0);
    group.arrive(3, first);
    assert_eq!(group.completed(first), 4);
    assert_eq!(group.completed(second), 0);
    group.arrive(3, second);
    assert_eq!(group.completed(second), 4);
}

#[test]
fn a_step_at_which_somebody_was_elsewhere_is_never_complete() {
    for pattern in PATTERNS {
        for elsewhere in 0..8 {
            let nodes: Vec<u32> = (0..8).map(|member| member / (1 + elsewhere % 2)).collect();
            let mut group = Group::new(&nodes, pattern, (1, 0));
            let (first, second) = (STEP, STEP + 1);
            let others: Vec<usize> = (0..8).filter(|m| *m != elsewhere as usize).collect();
            let (early, late): (Vec<usize>, Vec<usize>) = others.iter().partition(|m| *m % 3 != 0);
            early.into_iter().for_each(|member| group.arrive(member, first));
            // It has failed in the first one, and is in the second.
            group.arrive(elsewhere as usize, second);
            late.into_iter().for_each(|member| group.arrive(member, first));
            assert_eq!(group.completed(first), 0, "{elsewhere}");
            others.iter().for_each(|member| group.arrive(*member, second));
            let leaders = group.members.iter().filter(|member| member.leaders.leads()).count();
            assert_eq!(group.completed(second), leaders, "{elsewhere}");
            assert_eq!(group.completed(first), 0, "{elsewhere}");
        }
    }
}

#[test]
fn leaders_that_call_different_things_are_to_tell_all() {
    for pattern in PATTERNS {
        for other in 0..5 {
            let mut group = Group::new(&[0, 1, 2, 3, 4], pattern, (1, 0));
            let mut tells_all = false;
            for member in 0..5 {
                let signature = SIGNATURE + u64::from(member == other);
                tells_all |= group.arrive_calling(member, STEP, signature);
            }
            assert!(tells_all, "{other}");
            assert_eq!(group.completed(STEP), 0, "{other}");
        }
    }
}

#[test]
fn all_who_have_arrived_tell_all_once_one_does() {
    let mut group = Group::new(&[0, 1, 2, 3], Pattern::Tree, (1, 0));
    group.arrive(1, STEP);
    assert!(group.members[1].steps.hear_arrival(STEP));
    assert!(!group.members[2].steps.hear_arrival(STEP));
    let (words, stage) = (vec![5], Vec::new());
    let arrival = Arrival { group: GroupId(0), step: STEP, signature: SIGNATURE, words, stage };
    assert!(group.members[2].steps.arrive(arrival.clone(), NO_LINES));
    let (leaders, told) = group.members[2].steps.tell_all(STEP).expect("it has arrived");
    assert_eq!((leaders.ranks.len(), told), (4, arrival));
    assert!(!group.members[2].steps.hear_arrival(STEP), "it has told all");
    assert!(group.members[3].steps.tell_all(STEP).is_none(), "it has not arrived");
}

#[test]
fn who_has_left_had_arrived_at_steps_of_its_use_up_to_its_last() {
    let group = Group::new(&[0, 1, 2], Pattern::Tree, (1, 0));
    let (steps, rank) = (&group.members[0].steps, Rank(4));
    assert!(!steps.has_left_behind(rank, STEP));
    let last = |step| LastStep {
        group: GroupId(0),
        step,
        finished: true,
        commit: Commit::default(),
        digest: 0,
    };
    steps.hear_leaving(rank, last(STEP + 1));
    let known: Vec<bool> = (0..3).map(|by| steps.has_left_behind(rank, STEP + by)).collect();
    assert_eq!(known, [true, true, false]);
    assert!(!steps.has_left_behind(rank, (2 << STEP_BITS) + 1));
    steps.hear_leaving(rank, last((2 << STEP_BITS) + 9));
    assert!(!steps.has_left_behind(rank, STEP), "nobody knows");
}

#[test]
fn lines_are_not_published_once_this_rank_has_left_the_step() {
    for (width, published) in [(0, 1), (2, 0)] {
        let mut group = Group::new(&[0, 1], Pattern::Dissemination, (1, width));
        group.arrive(0, STEP);
        group.members[0].steps.end(STEP);
        group.arrive(1, STEP);
        assert_eq!(group.members[0].complete.len(), published);
        assert_eq!(group.members[1].complete.len(), 1);
    }
}

/// Two ranks with nodes of their own.
fn two_ranks(id: &str) -> [Runtime; 2] {
    const LIMIT: Timeout = Timeout::Millis(60_000);
    let join = |rank: u16| {
        let job = Job::in_process(id, Rank(rank), 2).on_node(rank.into());
        PendingInit::new(job, Config::default()).expect("job").wait(LIMIT).expect("join")
    };
    std::thread::scope(|scope| {
        [0, 1].map(|rank| scope.spawn(move || join(rank))).map(|rank| rank.join().expect("joins"))
    })
}

#[test]
fn lines_of_the_largest_job_have_room_and_go_by_one_message() {
    const MEMBERS: usize = u16::MAX as usize;
    let ranks: Arc<[Rank]> = (0..u16::MAX).map(Rank).collect();
    let room = lines_bytes(MEMBERS, 1) / size_of::<u64>();
    let leaders = Leaders::new(&ranks, order(&[0; MEMBERS]), 0, (Pattern::Dissemination, room));
    assert!(leaders.may_tell(LineWidth { words: PAYLOAD_WORDS, staged: 0 }));
    let lines: Vec<u64> = (0..(MEMBERS * PAYLOAD_WORDS) as u64).collect();
    let [sender, receiver] = two_ranks("largest");
    let message = Lines { step: STEP, tag: 0, signature: SIGNATURE, lines: lines.clone() };
    let shorter = Lines { tag: 1, lines: lines[..9].to_vec(), ..message.clone() };
    for message in [message, shorter] {
        sender.inner().send_lines([receiver.rank()].into(), GroupId::ALL, message);
    }
    let steps = receiver.inner().control.steps.of(GroupId::ALL);
    let received = |tag| {
        let state = steps.state.lock();
        state.received(sender.rank(), tag, STEP).map(|received| received.lines.clone())
    };
    let begin = std::time::Instant::now();
    while received(1).is_none() {
        assert!(begin.elapsed() < Duration::from_secs(60), "it does not come");
        std::thread::yield_now();
    }
    assert!(received(0).is_some_and(|came| came == lines), "in order, and whole");
    assert!(received(1).is_some_and(|came| came == lines[..9]), "what follows is read as well");
}
