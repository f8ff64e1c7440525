//! The bytes of every kind of frame, byte for byte: ranks of one version may come from different
//! builds.

use super::*;
use crate::ids::{GroupId, NotificationId, QueueId, SegmentId};
use crate::wire::message::{
    Announce, Arrival, Commit, Digest, GroupMessage, LastStep, Lines, MemoryKey, PairOffer, Pairing,
};
use crate::wire::shared_layout::{LINES_BYTES_MAX, OUTBOX_BYTES, STAGE_BYTES};

const STREAM: Stream = Stream { queue: QueueId(0x21), generation: 0x2223_2425 };
const REMOTE: RemoteAddress =
    RemoteAddress { segment: SegmentId(0x31), generation: 0x3233_3435, offset: 0x4142_4344_4546 };
const REQUEST: u64 = 0x0102_0304_0506_0708;

fn requests() -> Vec<Frame> {
    let put = Put {
        stream: STREAM,
        remote: REMOTE,
        size: 0x0051_5253,
        last: true,
        notification: NotificationId(0x6162_6364),
        value: 0x7172_7374,
    };
    let compare_swap = AtomicOperation::CompareSwap { comparator: u64::MAX, new: 3 };
    vec![
        Frame::Reply { request: REQUEST, outcome: Ok(0x1112_1314_1516_1718) },
        Frame::Reply { request: REQUEST, outcome: Err("why ä".to_owned()) },
        Frame::Ping { request: REQUEST },
        Frame::Put(put),
        Frame::Put(Put { last: false, size: PAYLOAD_MAX, ..put }),
        Frame::Ack { puts: REQUEST },
        Frame::Refused { stream: STREAM, reason: "no".to_owned() },
        Frame::Get { request: REQUEST, stream: STREAM, remote: REMOTE, size: 5 },
        Frame::Data { request: REQUEST, size: 6 },
        Frame::Atomic {
            request: REQUEST,
            remote: REMOTE,
            operation: AtomicOperation::FetchAdd { add: 7 },
        },
        Frame::Atomic { request: REQUEST, remote: REMOTE, operation: compare_swap },
        Frame::Passive { request: REQUEST, message: vec![1, 2, 3] },
        Frame::Message(Message::Withhold { request: REQUEST }),
    ]
}

/// What a member of a group says, as a frame.
pub(super) fn of_group(message: GroupMessage) -> Frame {
    Frame::Message(Message::Group(message))
}

fn groups() -> Vec<Frame> {
    let (group, attempt) = (GroupId(9), 0x0a0b_0c0d_0e0f);
    let abort = |dead| {
        let reason = "r".to_owned();
        of_group(GroupMessage::Abort { group, attempt, round: 0x1011, dead, reason })
    };
    let lines = |lines| {
        let lines = Lines { step: REQUEST, tag: 3, signature: 0x99, lines };
        of_group(GroupMessage::Lines { group, lines })
    };
    let arrive = |words, stage| {
        let arrival = Arrival { group, step: REQUEST, signature: 0x99, words, stage };
        of_group(GroupMessage::Arrive(arrival))
    };
    let passed_on = {
        let (words, stage) = (vec![5], vec![7, 8]);
        let arrival = Arrival { group, step: REQUEST, signature: 0x99, words, stage };
        of_group(GroupMessage::PassedOn { of: Rank(0x1415), arrival })
    };
    let announce = |incarnation, ranks| {
        of_group(GroupMessage::Announce(Announce { group, attempt, incarnation, ranks }))
    };
    let digest = |commits| {
        let (previous, tag, digest) = (0x1617, 3, 0x99);
        of_group(GroupMessage::Digest(Digest { group, attempt, previous, tag, digest, commits }))
    };
    vec![
        announce(0x1213, vec![Rank(1), Rank(0x203)]),
        announce(0, vec![]),
        of_group(GroupMessage::Withdraw { group, attempt }),
        abort(None),
        abort(Some(Rank(0x1415))),
        arrive(vec![], vec![]),
        arrive(vec![1, u64::MAX, 3, 4, 5, 6], vec![7, 8]),
        passed_on,
        lines(vec![]),
        lines(vec![7, u64::MAX, 8]),
        of_group(GroupMessage::Leaving(LastStep {
            group,
            step: REQUEST,
            finished: true,
            commit: Commit { attempt, incarnation: 0x1213 },
            digest: 0x99,
        })),
        digest(vec![]),
        digest(vec![
            Commit { attempt, incarnation: 0x1213 },
            Commit { attempt: 1, incarnation: 2 },
        ]),
    ]
}

fn pairing(message: Pairing) -> Frame {
    Frame::Message(Message::Pairing(message))
}

fn connections() -> Vec<Frame> {
    vec![
        Frame::Hello { rank: Rank(0x1819), token: std::array::from_fn(|i| i as u8) },
        Frame::Epoch { count: REQUEST },
        Frame::Register(Register {
            request: REQUEST,
            segment: SegmentId(2),
            generation: 3,
            size: 4,
            address: 5,
            nonce_address: 6,
            nonce: 7,
            descriptors: 8,
            keys: vec![MemoryKey { device: 9, key: 0x0a0b_0c0d, address: 0x0e0f }],
        }),
        Frame::Message(Message::Revoke { segment: SegmentId(2), generation: 0x0304_0506 }),
        Frame::Message(Message::Closed { lease: 0x0304_0506 }),
        Frame::Message(Message::Kill),
        pairing(Pairing::Offer(PairOffer {
            queue: QueueId(1),
            attempt: 2,
            number: 3,
            first_packet: 4,
            gid: std::array::from_fn(|i| i as u8),
            lid: 5,
            mtu: 6,
            reads: 7,
            flush_key: 8,
            flush_address: 9,
            vouches: true,
        })),
        pairing(Pairing::Connected { queue: QueueId(1), attempt: 2 }),
        pairing(Pairing::Ended {
            queue: QueueId(1),
            attempt: 2,
            refuses: true,
            reason: "cut".to_owned(),
        }),
        pairing(Pairing::Lost { queue: QueueId(1), attempt: 2 }),
        Frame::Goodbye,
        Frame::Release,
        Frame::TurnedAway { reason: String::new() },
        Frame::Switch { attempt: 0x0102_0304, number: 5, continues: 4 },
        Frame::Back { attempt: 0x0102_0304, number: 5, messages: 0x1112_1314_1516_1718 },
        Frame::Resume { number: 0x0102_0304 },
    ]
}

#[test]
fn bytes_on_the_wire_stay_the_same() {
    let frames = [requests(), groups(), connections()].concat();
    let encoded: Vec<Vec<u8>> = frames.iter().map(Frame::encode).collect();
    let hex = |bytes: &Vec<u8>| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let actual: Vec<String> = encoded.iter().map(hex).collect();
    let expected: Vec<&str> = include_str!("golden.txt").lines().collect();
    assert_eq!(actual, expected, "\n{}", actual.join("\n"));
    for (frame, bytes) in frames.iter().zip(&encoded) {
        assert_eq!(Frame::decode(&bytes[PREFIX..]).as_ref(), Some(frame));
        for end in PREFIX..bytes.len() {
            assert_eq!(Frame::decode(&bytes[PREFIX..end]), None, "{frame:?} cut at {end}");
        }
        let longer = [&bytes[PREFIX..], &[0]].concat();
        assert_eq!(Frame::decode(&longer), None, "{frame:?} with a byte behind it");
    }
}

#[test]
fn fields_beyond_their_limits_are_refused() {
    // The kind, the fields in front, and the field itself.
    let size = (PAYLOAD_MAX + 1).to_le_bytes();
    let lines = vec![0; LINES_BYTES_MAX + 8];
    let lines_len = (lines.len() as u32).to_le_bytes();
    let refused: [(&str, &[&[u8]]); 11] = [
        ("unknown kind", &[&[33]]),
        ("pairing", &[&[24], &[4], &[0; 5]]),
        ("keys", &[&[3], &[0; 46], &[5], &[0; 65]]),
        ("another magic", &[&[0], &[0; 22]]),
        ("size", &[&[13], &[0; 8], &size]),
        ("truth value", &[&[10, 2], &[0; 34]]),
        ("rank", &[&[9], &[0; 13], &[0, 0, 1, 0], &[0; 4]]),
        ("atomic operation", &[&[14], &[0; 21], &[2], &[0; 16]]),
        ("words", &[&[15], &[0; 17], &[7], &[0; 60]]),
        ("half a word", &[&[26], &[0; 18], &[12, 0, 0, 0], &[0; 12]]),
        ("lines", &[&[26], &[0; 18], &lines_len, &lines]),
    ];
    for (what, parts) in refused {
        assert_eq!(Frame::decode(&parts.concat()), None, "{what}");
    }
    for (kind, before, max) in [(15, 18, STAGE_BYTES), (16, 8, OUTBOX_BYTES)] {
        let body = |len: usize| {
            let bytes = (len as u32).to_le_bytes();
            [&[kind], &vec![0; before][..], &bytes, &vec![1; len]].concat()
        };
        assert!(Frame::decode(&body(max)).is_some());
        assert_eq!(Frame::decode(&body(max + 1)), None);
    }
    // A long text is cut where it is written, not refused where it is read.
    let text = [&[23][..], &5000u32.to_le_bytes(), &[b'x'; 5000]].concat();
    assert_eq!(Frame::decode(&text), Some(Frame::TurnedAway { reason: "x".repeat(5000) }));
    let cut = Frame::TurnedAway { reason: format!("x{}", "ä".repeat(2050)) }.encode();
    assert_eq!(cut.len(), PREFIX + 1 + 4 + 4095);
    // The second operand of an addition means nothing.
    let atomic = [&[14][..], &[0; 21], &[0], &[9; 16]].concat();
    assert!(Frame::decode(&atomic).is_some());
}
