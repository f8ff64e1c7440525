//! Calls on groups proved as they are planned, with their real stages of 16 KiB.

use super::*;
use crate::proof::{Call, prove};
use crate::steps::Carry;

const STAGE: u64 = STAGE_BYTES as u64;

fn keys(size: u32, count: u64, element_bytes: u64, user: bool) -> Vec<StandardKey> {
    (0..size)
        .map(|me| StandardKey { me, size, count, element_bytes, user, delivery: Delivery::Direct })
        .collect()
}

fn call(keys: &[StandardKey]) -> Call {
    Call {
        collective: Collective::Allreduce,
        shapes: keys.iter().map(StandardKey::shape).collect(),
        programs: keys.iter().map(|key| key.steps().expect("every call has steps")).collect(),
        in_place: false,
        in_order: true,
        agrees: false,
    }
}

/// Proves a call in place, between out of place.
fn check(keys: &[StandardKey]) -> Call {
    let call = call(keys);
    let calls = [call.clone(), Call { in_place: true, ..call.clone() }, call.clone()];
    // All chunks of a piece may be under way; without any, one slot stands for any number.
    let slots = if keys[0].algorithm() == Algorithm::Linear { CHAINED as u32 } else { 1 };
    if let Err(fault) = prove(&calls, slots) {
        panic!("{:?}: {fault}", keys[0]);
    }
    call
}

fn chained(size: u32, count: u64, element_bytes: u64, user: bool) -> Vec<StandardKey> {
    let keys = keys(size, count, element_bytes, user).into_iter();
    keys.map(|key| StandardKey { delivery: Delivery::Chain, ..key }).collect()
}

/// Up to 64 members, and around 128.
fn sizes() -> impl Iterator<Item = u32> {
    (1..=64).chain(127..=130)
}

#[test]
fn calls_in_lines_are_right() {
    for size in sizes() {
        for count in [1, 2, 5, 6] {
            let call = check(&keys(size, count, 8, false));
            assert_eq!(call.programs[0].len(), 3, "one arrival, one await, one reduction");
        }
    }
}

#[test]
fn staged_calls_are_right() {
    for size in sizes() {
        // One element for each of few stages shows as much as many: everybody reads everything.
        for (count, element_bytes) in [(1, STAGE), (3, STAGE), (9, STAGE / 4), (2, STAGE / 2 + 1)] {
            for user in [false, true] {
                let keys = keys(size, count, element_bytes, user);
                if keys[0].algorithm() == Algorithm::CopyInCopyOut {
                    check(&keys);
                }
            }
        }
    }
    for size in [1, 2, 3, 4] {
        for count in [7, 255, STAGE / 8, STAGE / 8 + 1, 5000] {
            check(&keys(size, count, 8, false));
            check(&keys(size, count, 8, true));
        }
    }
}

#[test]
fn sliced_calls_are_right() {
    let mut sliced = 0;
    for size in sizes().filter(|size| *size > 3) {
        let members = u64::from(size);
        // Members that have one element each in a chunk, and some, and more than fit once.
        for element_bytes in [STAGE / (members + 1), STAGE / (3 * members + 3)] {
            let least = SLICED_SAVES_BYTES_MIN / (members - 3) / element_bytes + 1;
            for count in [least, least + 1, least + members] {
                let keys = keys(size, count, element_bytes, false);
                assert_eq!(keys[0].algorithm(), Algorithm::SlicedCopy, "{:?}", keys[0]);
                check(&keys);
                sliced += 1;
            }
        }
    }
    assert_eq!(sliced, 65 * 2 * 3);
    check(&keys(5, 10_000, 8, false));
}

#[test]
fn chained_calls_are_right() {
    for size in sizes().filter(|size| *size > 3) {
        // One chunk, some, and as many as a piece has.
        let counts = if size < 20 { vec![1, 2, 5, CHAINED] } else { vec![1, 3] };
        for count in counts {
            for user in [false, true] {
                let keys = chained(size, count, STAGE, user);
                assert_eq!(keys[0].algorithm(), Algorithm::Linear);
                assert!(count <= keys[0].piece());
                check(&keys);
            }
        }
    }
    for (count, element_bytes) in [(7, 8), (2048, 8), (2049, 8), (5, STAGE / 2 + 1)] {
        check(&chained(9, count, element_bytes, true));
    }
}

/// What is sent between two steps is counted anew behind each.
#[test]
fn a_piece_sends_a_member_no_more_chunks_than_there_are_numbers() {
    for size in [4, 5, 9, 64, 1000] {
        for element_bytes in [1, 8, 24, STAGE / 2 + 1, STAGE] {
            let key = chained(size, 1 << 31, element_bytes, false)[size as usize / 2];
            let piece = key.piece();
            for me in [0, 1, size / 2, size - 2, size - 1] {
                let steps = StandardKey { me, count: piece, ..key }.steps().unwrap();
                assert_eq!(steps[..2], [Step::Arrive(Carry::Nothing), Step::AwaitAll]);
                assert_eq!(steps[steps.len() - 2..], steps[..2]);
                for member in 0..size {
                    let to = |step: &&Step| matches!(step, Step::Send { to, .. } if *to == member);
                    let sent = steps.iter().filter(to).count() as u64;
                    assert!([0, CHAINED].contains(&sent), "{key:?}: {sent}");
                }
                let sends = steps.iter().filter(|step| matches!(step, Step::Send { .. })).count();
                assert!(sends as u64 <= 3 * CHAINED);
            }
        }
    }
}

#[test]
fn what_leaders_have_no_room_for_goes_along_the_chain() {
    let long = STAGE + 1;
    for (size, bytes, delivery) in [
        (2, long, Delivery::Direct),
        (3, 1 << 20, Delivery::Direct),
        (4, STAGE, Delivery::Direct),
        (4, long, Delivery::Chain),
        (8, STAGE, Delivery::Direct),
        (9, 100, Delivery::Chain),
    ] {
        assert_eq!(Delivery::of(size, bytes, Some(false)), delivery, "{size} members");
        assert_eq!(Delivery::of(size, bytes, Some(true)), Delivery::Leaders);
        assert_eq!(Delivery::of(size, bytes, None), Delivery::Direct, "there are no leaders");
    }
    // What is left of a call behind its pieces may fit into a line.
    let left = |user| chained(9, 1, 8, user)[0].algorithm();
    assert_eq!((left(false), left(true)), (Algorithm::Inline, Algorithm::Linear));
}

#[test]
fn calls_of_all_kinds_follow_each_other() {
    for size in [2, 3, 5, 8] {
        let sorts = [(6, 8, false), (2000, 8, false), (7, 8, true), (1 << 14, 8, false)];
        let sorts =
            [sorts, [(1, STAGE, true), (3, 16, false), (4, STAGE / 2, false), (1, 1, true)]];
        let calls: Vec<Call> = sorts
            .concat()
            .into_iter()
            .map(|(count, element_bytes, user)| call(&keys(size, count, element_bytes, user)))
            .collect();
        // Stages keep their length in bytes; the proof counts elements, call by call.
        for pair in calls
            .windows(2)
            .filter(|pair| pair[0].shapes[0].element_bytes == pair[1].shapes[0].element_bytes)
        {
            prove(pair, 1).unwrap();
        }
        for call in calls {
            prove(&[call.clone(), call], 1).unwrap();
        }
    }
}

#[test]
fn all_choose_the_same_and_ask_for_no_more_than_there_is() {
    for size in [1, 2, 3, 4, 17, 64, 3000] {
        for count in [1, 6, 7, 255, 2048, 2049, 1 << 20, 1 << 31] {
            let keys = [0, size - 1].map(|me| StandardKey {
                me,
                size,
                count,
                element_bytes: 8,
                user: false,
                delivery: Delivery::Direct,
            });
            let [first, last] = keys.map(|key| key.algorithm());
            assert_eq!(first, last);
            let told = StandardKey { delivery: Delivery::Leaders, ..keys[0] }.algorithm();
            assert_eq!(told == first, first != Algorithm::SlicedCopy, "slices would go to each");
            match first {
                Algorithm::Inline => assert!(count * 8 <= LINE_BYTES),
                Algorithm::CopyInCopyOut => assert!(count * 8 > LINE_BYTES),
                Algorithm::SlicedCopy => assert!(count > 6 && (4..2048).contains(&size)),
                other => panic!("{other} is not for groups"),
            }
            assert!(
                (4..2048).contains(&size) == (first == Algorithm::SlicedCopy) || count < 1 << 20
            );
        }
    }
}

#[test]
fn what_one_arrival_does_has_one_in_its_steps() {
    for size in [2, 3, 5] {
        for count in [1, 6, 7, 255, 2048, 2049, 100_000] {
            for user in [false, true] {
                let key = StandardKey {
                    me: 1,
                    size,
                    count,
                    element_bytes: 8,
                    user,
                    delivery: Delivery::Direct,
                };
                let steps = key.steps().unwrap();
                let arrivals: Vec<_> =
                    steps.iter().filter(|step| matches!(step, Step::Arrive(_))).collect();
                assert_eq!(key.single_phase().is_some(), arrivals.len() == 1, "{key:?}");
                if let Some(single_phase) = key.single_phase() {
                    let nothing = matches!(arrivals[0], Step::Arrive(Carry::Nothing));
                    assert_eq!(
                        (single_phase.staged, single_phase.from),
                        (nothing, Origin::All),
                        "{key:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn failures_are_heard_of_after_the_last_reduction() {
    for count in [1, 2048, 2049, 5000] {
        let key = StandardKey {
            me: 1,
            size: 3,
            count,
            element_bytes: 8,
            user: true,
            delivery: Delivery::Direct,
        };
        let steps = key.steps().unwrap();
        let last = [Step::Arrive(Carry::Nothing), Step::AwaitAll];
        assert_eq!(steps[steps.len() - 2..], last);
        assert!(matches!(steps[steps.len() - 3], Step::Reduce { .. }));
        // Lines that carry data have no room for a failure.
        assert!(!steps.iter().any(|step| matches!(step, Step::Arrive(Carry::Data(_)))));
    }
}

#[test]
fn long_calls_are_carried_out_in_pieces() {
    for size in [2, 3, 4, 64, 1000] {
        for element_bytes in [1, 8, 1000, STAGE] {
            for user in [false, true] {
                let key = StandardKey {
                    me: 0,
                    size,
                    count: 1 << 31,
                    element_bytes,
                    user,
                    delivery: Delivery::Direct,
                };
                let piece = key.piece();
                assert!(piece * element_bytes >= STAGE, "{key:?}");
                let steps = StandardKey { count: piece, ..key }.steps().unwrap();
                assert!(steps.len() as u64 <= 3 * STEPS_MAX, "{key:?}: {} steps", steps.len());
                assert!(steps.len() <= u32::MAX as usize);
            }
        }
    }
}
