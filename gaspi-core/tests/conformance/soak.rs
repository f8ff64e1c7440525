//! Ranks that die or leave in the middle of everything, at a moment that the seed decides: every
//! call of the others ends, an error names the one at fault, and the others go on in a new group.

use super::*;
use std::cell::Cell;

/// Steps before a survivor gives the job up: far more than anybody needs.
const STEPS: u32 = 400;

/// What the ranks of a job do, the same in each run with its seed.
struct Chance(Cell<u64>);

impl Chance {
    fn below(&self, limit: u64) -> u64 {
        self.0.set(self.0.get().wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e));
        (self.0.get() >> 33) % limit
    }
}

/// An error that a call may end with once `victim` has ended.
fn check(error: &Error, victim: Rank) {
    let named = match error {
        Error::RankDied { rank, .. } | Error::RankLeft { rank, .. } => *rank == victim,
        Error::Refused { rank, .. } => *rank == victim,
        Error::RequestFailed { reason, .. } => reason.contains(&victim.to_string()),
        // The segment of a rank whose end was heard of.
        Error::InvalidSegment { .. } => true,
        _ => false,
    };
    assert!(named, "not the end of {victim}: {error}");
}

/// One step of traffic with a rank of the job.
fn step(rt: &Runtime, chance: &Chance) -> Result<()> {
    let rank = Rank(chance.below(rt.size().into()) as u16);
    let t = Transfer { local: S0, local_offset: 0, rank, remote: S0, remote_offset: 64, size: 256 };
    match chance.below(6) {
        0 => rt.write_notify(&t, NotificationId(rt.rank().0.into()), 1, Q0, LIMIT)?,
        1 => rt.read(&t, Q1, LIMIT)?,
        2 => _ = rt.atomic_fetch_add(S0, 8, rank, 1, LIMIT)?,
        3 => rt.ping(rank, LIMIT)?,
        4 => rt.wait(Q0, LIMIT)?,
        _ => rt.wait(Q1, LIMIT)?,
    }
    Ok(())
}

/// Goes on until an error says that the victim has ended.
fn until_told(rt: &Runtime, victim: Rank, chance: &Chance) {
    for _ in 0..STEPS {
        if let Err(error) = step(rt, chance) {
            return check(&error, victim);
        }
        if let Err(error) = rt.barrier(GroupId::ALL, LIMIT) {
            return check(&error, victim);
        }
    }
    panic!("the end of {victim} is not told");
}

/// The others meet in a group of their own, and write to each other.
fn go_on(rt: &Runtime, victim: Rank) {
    for queue in [Q0, Q1] {
        rt.queue_purge(queue, LIMIT).expect("purge");
    }
    let group = rt.group_create().expect("a group");
    for rank in all(rt).filter(|rank| *rank != victim) {
        rt.group_add(group, rank).expect("a member");
    }
    rt.group_commit(group, LIMIT).expect("the others agree");
    for round in 1..=5 {
        for rank in all(rt).filter(|rank| *rank != victim) {
            let t = Transfer { remote_offset: 1024 + 8 * u64::from(rt.rank().0), ..eight(rank) };
            put_u64(rt, S0, 0, round);
            rt.write(&t, Q0, LIMIT).expect("posted");
            rt.wait(Q0, LIMIT).expect("written");
        }
        rt.barrier(group, LIMIT).expect("barrier");
        for rank in all(rt).filter(|rank| *rank != victim) {
            assert_eq!(get_u64(rt, S0, 1024 + 8 * u64::from(rank.0)), round, "{rank}");
        }
        rt.barrier(group, LIMIT).expect("barrier");
    }
}

fn job(dies: bool, size: u32) {
    let seed = ranks::next_seed();
    let plan = Chance(Cell::new(seed));
    let (victim, last) = (Rank(plan.below(size.into()) as u16), plan.below(30) as u32);
    let made = ranks::Barrier::new(size as usize);
    run_owned(size, &Config::default(), |rt| {
        make(&rt, S0, 4096);
        made.wait();
        let chance = Chance(Cell::new(seed ^ (u64::from(rt.rank().0) << 40)));
        if rt.rank() != victim {
            until_told(&rt, victim, &chance);
            go_on(&rt, victim);
            return rt.term(LIMIT).expect("term");
        }
        for nth in 0..last {
            // Nobody else ends.
            step(&rt, &chance).expect("all live");
            if nth < last / 2 {
                meet(&rt);
            }
        }
        if dies { die(rt) } else { rt.term(LIMIT).expect("term") }
    });
}

fn the_others_go_on_when_one_dies() {
    ranks::sizes(&[5]).into_iter().for_each(|size| job(true, size));
}

fn the_others_go_on_when_one_leaves() {
    ranks::sizes(&[5]).into_iter().for_each(|size| job(false, size));
}

tests! {
    EVERY:
        the_others_go_on_when_one_dies,
        the_others_go_on_when_one_leaves;
    SEVERAL:
        the_others_go_on_when_one_dies,
        the_others_go_on_when_one_leaves;
}
