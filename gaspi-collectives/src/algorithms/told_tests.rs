//! The schedules of gaspi-core proved, which steps of groups go by as well: with blocks, so that a
//! member gets what is told of each, and without, so that nobody goes on before all have come.

use super::*;
use crate::collective::Collective;
use crate::proof::{Call, Fault, prove};

const PATTERNS: [Pattern; 2] = [Pattern::Tree, Pattern::Dissemination];
const ELEMENT_BYTES: u64 = 64;

/// Members on nodes of their own, whose blocks have so many elements, and which send each other two
/// in a message.
fn shape(me: u32, counts: Vec<u64>) -> Shape {
    Shape {
        me,
        size: counts.len() as u32,
        count: 1,
        nodes: (0..counts.len() as u32).collect(),
        counts,
        sends: Vec::new(),
        receives: Vec::new(),
        element_bytes: ELEMENT_BYTES,
        root: 0,
        message_bytes: 2 * ELEMENT_BYTES,
        slots: 1,
        stage_bytes: 0,
        shares_cores: false,
        one_machine: false,
        agreed: false,
    }
}

/// Calls of members with these schedules, one without data and one with blocks, three times each.
fn proved(pattern: Pattern, schedules: &[Schedule], counts: &[u64]) -> Result<(), Fault> {
    let shapes: Vec<Shape> =
        (0..counts.len() as u32).map(|me| shape(me, counts.to_vec())).collect();
    let steps = |collective, shape: &Shape| {
        let mut program = Program::new(shape).expect("an element fits");
        let by = (pattern, &schedules[shape.me as usize]);
        match collective {
            Collective::Barrier => {
                by_schedule(&mut program, &Team::all(shape), by, &Told::Nothing);
            }
            _ => allgather_by(&mut program, shape, by),
        }
        program.into_steps()
    };
    for collective in [Collective::Barrier, Collective::Allgather] {
        let programs = shapes.iter().map(|shape| steps(collective, shape)).collect();
        let (shapes, in_order, agrees) = (shapes.clone(), false, false);
        let call = Call { collective, shapes, programs, in_place: false, in_order, agrees };
        prove(&[call.clone(), Call { in_place: true, ..call.clone() }, call], 1)?;
    }
    Ok(())
}

fn all(pattern: Pattern, n: usize) -> Vec<Schedule> {
    (0..n).map(|me| pattern.schedule(n, me)).collect()
}

fn sent(schedule: &Schedule) -> usize {
    schedule.outgoing.iter().map(|next| next.to.len()).sum()
}

/// The places that a member knows of by the first so many of its messages.
fn known(schedule: &Schedule, me: usize, n: usize, messages: usize) -> Vec<bool> {
    let mut known = vec![false; n];
    known[me] = true;
    let told = schedule.incoming[..messages].iter().flat_map(|incoming| incoming.of.iter(n));
    told.for_each(|place| known[place] = true);
    known
}

#[test]
fn schedules_are_right() {
    let is_full = std::env::var_os("GASPI_TEST_FULL").is_some_and(|value| value == "1");
    let many = if is_full { vec![127, 128, 129, 257] } else { vec![129] };
    for n in (1..=70).chain(many) {
        for pattern in PATTERNS {
            let schedules = all(pattern, n);
            // As long as a message, longer, of one element and of none.
            let counts: Vec<u64> =
                (0..n as u64).map(|member| [2, 1, 5, 0][member as usize % 4]).collect();
            for counts in [vec![1; n], counts] {
                if let Err(fault) = proved(pattern, &schedules, &counts) {
                    panic!("{pattern:?} of {n}: {fault}");
                }
            }
        }
    }
}

#[test]
fn messages_are_few_and_a_dissemination_tells_nothing_twice() {
    for n in 1..=70 {
        let of_all: usize = all(Pattern::Tree, n).iter().map(sent).sum();
        assert_eq!(of_all, 2 * (n - 1), "two along each edge");
        for schedule in all(Pattern::Dissemination, n) {
            assert_eq!(sent(&schedule), n.next_power_of_two().ilog2() as usize);
            let told: usize = schedule.incoming.iter().map(|incoming| incoming.of.count).sum();
            assert_eq!(told, n - 1, "of each other one once");
        }
    }
}

/// What a schedule might be by mistake, with what it is called.
fn mistakes(schedule: &Schedule, me: usize, n: usize) -> Vec<(String, Schedule)> {
    let mut mistakes = Vec::new();
    let mut push = |what: String, change: &dyn Fn(&mut Vec<Incoming>, &mut Vec<Outgoing>)| {
        let (mut incoming, mut outgoing) = (schedule.incoming.to_vec(), schedule.outgoing.to_vec());
        change(&mut incoming, &mut outgoing);
        mistakes.push((what, Schedule { incoming: incoming.into(), outgoing: outgoing.into() }));
    };
    for (at, next) in schedule.outgoing.iter().enumerate() {
        let is_later = schedule.outgoing[..at].last().is_none_or(|last| last.after < next.after);
        let before = next.after.saturating_sub(1);
        let knows = known(schedule, me, n, before);
        // What a message tells may be known already.
        if next.after > 0 && is_later && !next.of.iter(n).all(|place| knows[place]) {
            push(format!("{at} is sent too early"), &|_, out| out[at].after -= 1);
        }
        push(format!("{at} is not sent"), &|_, out| drop(out.remove(at)));
        push(format!("{at} goes elsewhere"), &|_, out| out[at].to[0] = (out[at].to[0] + 1) % n);
        push(format!("{at} tells of others"), &|_, out| {
            out[at].of.first = (out[at].of.first + 1) % n
        });
        push(format!("{at} tells of fewer"), &|_, out| out[at].of.count -= 1);
    }
    for at in 0..schedule.incoming.len() {
        push(format!("{at} is not awaited"), &|incoming, out| {
            incoming.remove(at);
            out.iter_mut().for_each(|next| next.after = next.after.min(incoming.len()));
        });
        push(format!("{at} comes from elsewhere"), &|incoming, _| {
            incoming[at].from = (incoming[at].from + 1) % n;
        });
        push(format!("{at} is of others"), &|incoming, _| {
            incoming[at].of.first = (incoming[at].of.first + 1) % n;
        });
    }
    mistakes
}

#[test]
fn planted_faults_in_schedules_are_found() {
    for pattern in PATTERNS {
        for n in [2, 3, 4, 5, 6, 7, 8, 9, 13] {
            // So that no two sets of places are equally long.
            let counts: Vec<u64> = (0..n as u64).map(|member| 1 << member.min(4)).collect();
            let right = all(pattern, n);
            for me in 0..n {
                for (what, wrong) in mistakes(&right[me], me, n) {
                    let mut schedules = right.clone();
                    schedules[me] = wrong;
                    let found = proved(pattern, &schedules, &counts);
                    assert!(found.is_err(), "{pattern:?} of {n}, {me}: {what}");
                }
            }
        }
    }
}

/// Where all are wrong alike, so that sender and receiver agree.
#[test]
fn a_message_that_tells_of_too_few_for_all_is_found() {
    for n in [3, 5, 8, 11] {
        for (pattern, tag) in [(Pattern::Tree, 0), (Pattern::Tree, 1), (Pattern::Dissemination, 1)]
        {
            let mut schedules = all(pattern, n);
            for Schedule { incoming, outgoing } in &mut schedules {
                let incoming = incoming.iter_mut().map(|i| (i.tag, &mut i.of));
                let outgoing = outgoing.iter_mut().map(|o| (o.tag, &mut o.of));
                let all = incoming.chain(outgoing).filter(|message| message.0 == tag);
                all.for_each(|(_, of)| of.count -= 1);
            }
            assert!(proved(pattern, &schedules, &vec![1; n]).is_err(), "{pattern:?} of {n}");
        }
    }
}
