//! Messages survive the way through bytes, and nothing else does harm.

use super::*;
use crate::ids::Rank;
use proptest::prelude::*;
use std::net::{IpAddr, SocketAddr};

pub(crate) fn card() -> impl Strategy<Value = Card> {
    let cpus = prop::collection::vec(any::<u64>(), 0..20);
    let endpoints = prop::collection::vec(
        (any::<IpAddr>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port)),
        0..5,
    );
    let process = (any::<u16>(), any::<i32>(), any::<[u64; 4]>());
    let networks = prop::collection::vec((any::<IpAddr>(), any::<u8>()), 0..4);
    (process, endpoints, ".{0,40}", (cpus, networks)).prop_map(
        |(process, endpoints, host, (cpus, networks))| {
            let (rank, pid, [start_time, instance, node, machine]) = process;
            Card {
                rank: Rank(rank),
                pid,
                start_time,
                instance,
                node,
                machine,
                endpoints,
                host: host.into(),
                cpus: cpus.into(),
                networks: networks.into(),
            }
        },
    )
}

pub(crate) fn failure() -> impl Strategy<Value = Failure> {
    prop_oneof![
        (".{0,40}", any::<u16>(), ".{0,40}", any::<u16>(), ".{0,40}").prop_map(
            |(field, left, left_value, right, right_value)| Failure::Mismatch {
                field,
                left: Rank(left),
                left_value,
                right: Rank(right),
                right_value
            }
        ),
        ".{0,200}".prop_map(Failure::Environment),
        ".{0,200}".prop_map(Failure::Meeting),
        (any::<u64>(), any::<u64>(), ".{0,40}").prop_map(|(needed, available, reason)| {
            Failure::Memory { needed, available, reason }
        }),
        (".{0,40}", ".{0,40}").prop_map(|(call, reason)| Failure::System { call, reason }),
    ]
}

pub(crate) fn message() -> impl Strategy<Value = Message> {
    let agreed = prop::collection::vec((".{0,20}", any::<u64>()), 0..12);
    let first = prop::collection::vec(any::<u16>().prop_map(Rank), 0..MISSING_MAX);
    prop_oneof![
        (".{0,40}", any::<u32>(), agreed, card()).prop_map(|(job, size, agreed, card)| {
            Message::Join(Join { job, size, agreed, card })
        }),
        any::<u16>().prop_map(|rank| Message::Kill(Rank(rank))),
        (any::<u32>(), first, ".{0,90}").prop_map(|(count, first, words)| Message::Missing {
            count,
            first,
            words
        }),
        (any::<u16>(), ".{0,90}").prop_map(|(rank, how)| Message::Died { rank: Rank(rank), how }),
        (".{0,40}", any::<u16>(), ".{0,90}").prop_map(|(job, rank, reason)| Message::Unable {
            job,
            rank: Rank(rank),
            reason
        }),
        Just(Message::Leave),
        any::<([u8; 16], [u8; 32])>().prop_map(|(token, key)| Message::Table { token, key }),
        failure().prop_map(Message::Failed),
        Just(Message::Over),
    ]
}

proptest! {
    #[test]
    fn what_is_said_is_understood(
        message in message(),
        tail in prop::collection::vec(any::<u8>(), 0..9),
    ) {
        let mut bytes = message.encode();
        let len = bytes.len();
        for cut in 0..len {
            prop_assert_eq!(Message::decode(&bytes[..cut]), Ok(None));
        }
        bytes.extend(tail);
        prop_assert_eq!(Message::decode(&bytes), Ok(Some((message, len))));
    }

    #[test]
    fn nonsense_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Message::decode(&bytes);
        let mut framed = (bytes.len() as u32).to_le_bytes().to_vec();
        framed.extend(&bytes);
        let _ = Message::decode(&framed);
    }

    #[test]
    fn a_flipped_bit_never_panics(
        message in message(),
        at in any::<prop::sample::Index>(),
        bit in 0..8u32,
    ) {
        let mut bytes = message.encode();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let _ = Message::decode(&bytes);
    }
}

#[test]
fn mutated_messages_do_no_harm() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let samples: Vec<Vec<u8>> = (0..256)
        .map(|_| message().new_tree(&mut runner).expect("message").current().encode())
        .collect();
    crate::fuzzed::run("message", 512 * 1024, |seed| {
        let sample = seed.below(samples.len() as u64) as usize;
        let mut bytes = samples[sample].clone();
        seed.mutate(&mut bytes);
        if seed.below(2) == 0 && bytes.len() >= 4 {
            // A length that fits, so that the fields are looked at.
            let len = bytes.len() as u32 - 4;
            bytes[..4].copy_from_slice(&len.to_le_bytes());
        }
        if let Ok(Some((message, len))) = Message::decode(&bytes) {
            assert!(len <= bytes.len());
            assert_eq!(Message::decode(&message.encode()), Ok(Some((message.clone(), len))));
        }
    });
}

#[test]
fn long_texts_are_cut_at_a_character() {
    let text = "ä".repeat(TEXT_MAX);
    let bytes = Message::Failed(Failure::Meeting(format!("x{text}"))).encode();
    let Ok(Some((Message::Failed(Failure::Meeting(cut)), _))) = Message::decode(&bytes) else {
        panic!("not understood");
    };
    assert_eq!(cut.len(), TEXT_MAX - 1);
}

#[test]
fn another_version_is_told_apart() {
    let [low, high] = (VERSION + 1).to_le_bytes();
    let bytes = [3, 0, 0, 0, 1, low, high];
    assert_eq!(Message::decode(&bytes), Err(DecodeError::Version(VERSION + 1)));
}
