//! The plans of long buckets that take turns: once one member has begun, messages come to all
//! others, which begin then.

use std::sync::Arc;

use super::*;

/// Messages that fit between two members.
const SLOTS: usize = 2;
const BYTES: u64 = 256 << 10;

fn plan(algorithm: Algorithm, me: u32, size: u32) -> Arc<Plan> {
    let shape = Shape {
        me,
        size,
        count: BYTES / 4,
        counts: Vec::new(),
        sends: Vec::new(),
        receives: Vec::new(),
        element_bytes: 4,
        root: 0,
        nodes: (0..size).collect(),
        message_bytes: 32 << 10,
        slots: SLOTS as u32,
        stage_bytes: 0,
        shares_cores: false,
        one_machine: false,
        agreed: false,
    };
    let key = PlanKey {
        collective: Collective::Allreduce,
        count: shape.count,
        element_bytes: 4,
        root: Rank(0),
        algorithm: Some(algorithm),
        mode: Mode::Fast,
        user: None,
        counts: Vec::new(),
        receives: Vec::new(),
        part_of_long: false,
    };
    key.plan_among_agreed(&shape, None).expect("it serves")
}

/// Members that run their plans as far as messages come, and begin when one comes.
struct Played {
    plans: Vec<Arc<Plan>>,
    /// The next step of those that have begun.
    cursors: Vec<Option<usize>>,
    /// Messages that are on their way, by receiver and sender.
    sent: Vec<Vec<usize>>,
}

impl Played {
    fn new(algorithm: Algorithm, size: u32, first: usize) -> Played {
        let plans = (0..size).map(|me| plan(algorithm, me, size)).collect();
        let members = size as usize;
        let mut cursors = vec![None; members];
        cursors[first] = Some(0);
        Played { plans, cursors, sent: vec![vec![0; members]; members] }
    }

    /// Does the next step of a member; false if it has to wait.
    fn advance(&mut self, me: usize) -> bool {
        if self.cursors[me].is_none() && self.sent[me].iter().any(|sent| *sent > 0) {
            self.cursors[me] = Some(0);
        }
        let Some(cursor) = self.cursors[me] else { return false };
        let Some(step) = self.plans[me].steps.get(cursor) else { return false };
        match *step {
            Step::Send { to, .. } if self.sent[to as usize][me] == SLOTS => return false,
            Step::Send { to, .. } => self.sent[to as usize][me] += 1,
            Step::Receive { from, .. } | Step::ReceiveReduce { from, .. } => {
                let sent = &mut self.sent[me][from as usize];
                match sent.checked_sub(1) {
                    None => return false,
                    Some(left) => *sent = left,
                }
            }
            _ => {}
        }
        self.cursors[me] = Some(cursor + 1);
        true
    }

    fn run(&mut self) {
        while (0..self.plans.len()).any(|me| self.advance(me)) {}
    }
}

#[test]
fn all_members_notice_what_one_has_begun() {
    for algorithm in [Algorithm::Ring, Algorithm::RecursiveDoubling, Algorithm::HalvingDoubling] {
        for size in 2..=13 {
            for first in 0..size as usize {
                let mut played = Played::new(algorithm, size, first);
                played.run();
                let waits = (0..size as usize)
                    .filter(|me| played.cursors[*me] != Some(played.plans[*me].steps.len()));
                let waits: Vec<usize> = waits.collect();
                assert_eq!(waits, [0; 0], "{algorithm} of {size}, begun by {first}");
            }
        }
    }
}
