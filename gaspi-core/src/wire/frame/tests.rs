//! Frames travel unharmed, and nonsense does no harm.

use super::golden_tests::of_group;
use super::*;
use crate::ids::{GroupId, NotificationId, QueueId, SegmentId};
use crate::sync::arrival_slot::PAYLOAD_WORDS;
use crate::wire::message::{
    Announce, Arrival, Commit, Digest, GroupMessage, KEYS_MAX, LastStep, Lines, MemoryKey,
    PairOffer, Pairing,
};
use proptest::prelude::*;

fn stream() -> impl Strategy<Value = Stream> {
    (any::<u8>(), any::<u32>())
        .prop_map(|(queue, generation)| Stream { queue: QueueId(queue), generation })
}

fn lines() -> impl Strategy<Value = Lines> {
    let words = prop::collection::vec(any::<u64>(), 0..40);
    let fields = (any::<[u64; 2]>(), any::<u8>(), words);
    fields.prop_map(|([step, signature], tag, lines)| Lines { step, tag, signature, lines })
}

fn remote() -> impl Strategy<Value = RemoteAddress> {
    (any::<u8>(), any::<u32>(), any::<u64>()).prop_map(|(segment, generation, offset)| {
        RemoteAddress { segment: SegmentId(segment), generation, offset }
    })
}

fn put() -> impl Strategy<Value = Put> {
    let fields = (stream(), remote(), 0..=PAYLOAD_MAX, any::<bool>(), any::<[u32; 2]>());
    fields.prop_map(|(stream, remote, size, last, [id, value])| {
        let notification = NotificationId(id);
        Put { stream, remote, size, last, notification, value }
    })
}

fn register() -> impl Strategy<Value = Register> {
    let key = any::<(u8, u32, u64)>();
    let key = key.prop_map(|(device, key, address)| MemoryKey { device, key, address });
    let keys = prop::collection::vec(key, 0..=usize::from(KEYS_MAX));
    let fields = (any::<[u64; 5]>(), any::<u8>(), any::<u32>(), any::<u8>(), keys);
    fields.prop_map(|([request, size, address, nonce_address, nonce], id, generation, n, keys)| {
        Register {
            request,
            segment: SegmentId(id),
            generation,
            size,
            address,
            nonce_address,
            nonce,
            descriptors: n,
            keys,
        }
    })
}

fn pairing() -> impl Strategy<Value = Pairing> {
    let end = any::<([u32; 3], [u8; 16], u16, [u8; 2])>();
    let fields = (any::<u8>(), any::<u32>(), end, any::<String>(), 0..3);
    fields.prop_map(|(queue, attempt, end, reason, kind)| {
        let queue = QueueId(queue);
        let ([number, first_packet, flush_key], gid, lid, [mtu, reads]) = end;
        match kind {
            0 => Pairing::Offer(PairOffer {
                queue,
                attempt,
                number,
                first_packet,
                gid,
                lid,
                mtu,
                reads,
                flush_key,
                flush_address: u64::from(number) << 32,
                vouches: number % 2 == 0,
            }),
            1 => Pairing::Connected { queue, attempt },
            2 => Pairing::Ended { queue, attempt, refuses: number % 2 == 0, reason },
            _ => Pairing::Lost { queue, attempt },
        }
    })
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let words = prop::collection::vec(any::<u64>(), 0..=PAYLOAD_WORDS);
    let fields = (any::<u8>(), any::<[u64; 2]>(), words, any::<Vec<u8>>());
    fields.prop_map(|(group, [step, signature], words, stage)| {
        let group = GroupId(group);
        Arrival { group, step, signature, words, stage }
    })
}

/// What one rank asks another for, and the answers.
fn requests() -> impl Strategy<Value = Frame> {
    prop_oneof![
        (any::<u64>(), any::<Result<u64, String>>())
            .prop_map(|(request, outcome)| Frame::Reply { request, outcome }),
        put().prop_map(Frame::Put),
        (any::<u64>(), stream(), remote(), 0..=PAYLOAD_MAX).prop_map(
            |(request, stream, remote, size)| Frame::Get { request, stream, remote, size }
        ),
        (stream(), any::<String>()).prop_map(|(stream, reason)| Frame::Refused { stream, reason }),
        any::<u64>().prop_map(|puts| Frame::Ack { puts }),
        (any::<u64>(), any::<Vec<u8>>())
            .prop_map(|(request, message)| Frame::Passive { request, message }),
        any::<u64>().prop_map(|request| Frame::Message(Message::Withhold { request })),
        pairing().prop_map(|pairing| Frame::Message(Message::Pairing(pairing))),
        (any::<u64>(), remote(), any::<u64>(), any::<u64>()).prop_map(
            |(request, remote, comparator, new)| {
                let operation = AtomicOperation::CompareSwap { comparator, new };
                Frame::Atomic { request, remote, operation }
            }
        ),
    ]
}

/// What members of a group tell each other.
fn groups() -> impl Strategy<Value = Frame> {
    prop_oneof![
        (any::<u8>(), any::<u64>(), any::<u32>(), any::<Vec<u16>>()).prop_map(
            |(group, attempt, incarnation, ranks)| {
                let (group, ranks) = (GroupId(group), ranks.into_iter().map(Rank).collect());
                of_group(GroupMessage::Announce(Announce { group, attempt, incarnation, ranks }))
            }
        ),
        (any::<u8>(), any::<u64>(), any::<u32>(), any::<Option<u16>>(), any::<String>()).prop_map(
            |(group, attempt, round, dead, reason)| {
                let (group, dead) = (GroupId(group), dead.map(Rank));
                of_group(GroupMessage::Abort { group, attempt, round, dead, reason })
            }
        ),
        (any::<u8>(), any::<[u64; 3]>(), any::<u8>(), any::<Vec<(u64, u32)>>()).prop_map(
            |(group, [attempt, previous, digest], tag, commits)| {
                let commit = |(attempt, incarnation)| Commit { attempt, incarnation };
                let (group, commits) = (GroupId(group), commits.into_iter().map(commit).collect());
                let digest = Digest { group, attempt, previous, tag, digest, commits };
                of_group(GroupMessage::Digest(digest))
            }
        ),
        arrival().prop_map(|arrival| of_group(GroupMessage::Arrive(arrival))),
        (any::<u16>(), arrival()).prop_map(|(rank, arrival)| {
            of_group(GroupMessage::PassedOn { of: Rank(rank), arrival })
        }),
        (any::<u8>(), lines()).prop_map(|(group, lines)| {
            of_group(GroupMessage::Lines { group: GroupId(group), lines })
        }),
        (any::<u8>(), any::<u64>(), any::<bool>(), any::<(u64, u32)>(), any::<u64>()).prop_map(
            |(group, step, finished, (attempt, incarnation), digest)| {
                let (group, commit) = (GroupId(group), Commit { attempt, incarnation });
                let last = LastStep { group, step, finished, commit, digest };
                of_group(GroupMessage::Leaving(last))
            }
        ),
    ]
}

/// What is about a connection or a whole process.
fn connections() -> impl Strategy<Value = Frame> {
    prop_oneof![
        (any::<u16>(), any::<[u8; 16]>())
            .prop_map(|(rank, token)| Frame::Hello { rank: Rank(rank), token }),
        register().prop_map(Frame::Register),
        any::<String>().prop_map(|reason| Frame::TurnedAway { reason }),
        any::<u64>().prop_map(|count| Frame::Epoch { count }),
        any::<u32>().prop_map(|lease| Frame::Message(Message::Closed { lease })),
        Just(Frame::Message(Message::Kill)),
        Just(Frame::Goodbye),
        Just(Frame::Release),
        (any::<u32>(), any::<u32>(), any::<u32>()).prop_map(|(attempt, number, continues)| {
            Frame::Switch { attempt, number, continues }
        }),
        any::<u32>().prop_map(|number| Frame::Resume { number }),
        (any::<u32>(), any::<u32>(), any::<u64>())
            .prop_map(|(attempt, number, messages)| Frame::Back { attempt, number, messages }),
    ]
}

fn frames() -> impl Strategy<Value = Frame> {
    prop_oneof![requests(), groups(), connections()]
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(frame in frames()) {
        let bytes = frame.encode();
        let len = u32::from_le_bytes(bytes[..PREFIX].try_into().expect("prefix"));
        prop_assert_eq!(len as usize, bytes.len() - PREFIX);
        prop_assert_eq!(Frame::decode(&bytes[PREFIX..]), Some(frame));
    }

    #[test]
    fn garbage_does_no_harm(bytes in any::<Vec<u8>>()) {
        Frame::decode(&bytes);
    }
}

#[test]
fn mutated_frames_do_no_harm() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let samples: Vec<Vec<u8>> = (0..256)
        .map(|_| frames().new_tree(&mut runner).expect("frame").current().encode())
        .collect();
    crate::fuzzed::run("frame", 16 * 1024, |seed| {
        let sample = seed.below(samples.len() as u64) as usize;
        let mut bytes = samples[sample][PREFIX..].to_vec();
        seed.mutate(&mut bytes);
        if let Some(frame) = Frame::decode(&bytes) {
            assert_eq!(Frame::decode(&frame.encode()[PREFIX..]), Some(frame));
        }
    });
}

#[test]
fn frames_that_are_received_by_their_length_have_it() {
    let remote = RemoteAddress { segment: SegmentId(0), generation: 0, offset: 0 };
    let stream = Stream { queue: QueueId(0), generation: 0 };
    let notification = NotificationId(0);
    let put = Put { stream, remote, size: 0, last: true, notification, value: 0 };
    assert_eq!(Frame::Put(put).encode().len(), PUT_LEN);
    assert_eq!(Frame::Ack { puts: 0 }.encode().len(), ACK_LEN);
}

#[test]
fn frames_of_fixed_length_are_those_of_the_general_way() {
    let arrival = |words: usize, stage: usize| {
        let (words, stage) = (vec![7; words], vec![8; stage]);
        let arrival = Arrival { group: GroupId(3), step: 4, signature: 5, words, stage };
        Message::Group(GroupMessage::Arrive(arrival))
    };
    for (words, stage) in [(0, 0), (1, 0), (0, 1), (PAYLOAD_WORDS, 9)] {
        let message = arrival(words, stage);
        let bytes = bytes_of(&message);
        let frame = Frame::Message(message);
        // A frame is written field by field.
        assert_eq!(bytes, frame.encode());
        assert_eq!(Frame::decode(&bytes[PREFIX..]), Some(frame));
    }
    // As long as one without words and staging, but it says that something follows.
    let bare = bytes_of(&arrival(0, 0));
    for at in bare.len() - 5..bare.len() {
        let mut bytes = bare.clone();
        bytes[at] = 1;
        assert_eq!(Frame::decode(&bytes[PREFIX..]), None);
    }
}

fn bytes_of(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    Encode::append_to(message, &mut bytes);
    bytes
}
