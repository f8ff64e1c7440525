//! Frames travel unharmed, and nonsense does no harm.

use super::*;
use proptest::prelude::*;

fn stream() -> impl Strategy<Value = Stream> {
    (any::<u8>(), any::<u32>())
        .prop_map(|(queue, generation)| Stream { queue: QueueId(queue), generation })
}

fn message() -> impl Strategy<Value = BarrierMessage> {
    let departed = any::<u16>().prop_map(|rank| BarrierMessage::Departed(Rank(rank)));
    prop_oneof![Just(BarrierMessage::Gathered), Just(BarrierMessage::Complete), departed]
}

fn frames() -> impl Strategy<Value = Frame> {
    let words = prop::collection::vec(any::<u64>(), 0..=PAYLOAD_WORDS);
    let remote = (any::<u8>(), any::<u32>(), any::<u64>()).prop_map(|(s, generation, offset)| {
        RemoteAddress { segment: SegmentId(s), generation, offset }
    });
    prop_oneof![
        (any::<u16>(), any::<[u8; 16]>())
            .prop_map(|(rank, token)| Frame::Hello { rank: Rank(rank), token }),
        (any::<u64>(), any::<Result<u64, String>>())
            .prop_map(|(request, outcome)| Frame::Reply { request, outcome }),
        (any::<u64>(), any::<u8>(), any::<u32>(), any::<[u64; 4]>()).prop_map(
            |(request, segment, generation, [size, address, nonce_address, nonce])| {
                let segment = SegmentId(segment);
                let register = Register {
                    request,
                    segment,
                    generation,
                    size,
                    address,
                    nonce_address,
                    nonce,
                    descriptors: 1,
                };
                Frame::Register(register)
            }
        ),
        (any::<u8>(), any::<u64>(), any::<u32>(), any::<Vec<u16>>()).prop_map(
            |(group, attempt, incarnation, ranks)| Frame::Announce(Announce {
                group: GroupId(group),
                attempt,
                incarnation,
                ranks: ranks.into_iter().map(Rank).collect(),
            })
        ),
        (any::<u8>(), any::<u64>(), any::<u32>(), any::<Option<u16>>(), any::<String>()).prop_map(
            |(group, attempt, round, dead, reason)| Frame::Abort {
                group: GroupId(group),
                attempt,
                round,
                dead: dead.map(Rank),
                reason
            }
        ),
        (stream(), remote.clone(), 0..=PAYLOAD_MAX, any::<bool>(), any::<[u32; 2]>()).prop_map(
            |(stream, remote, size, last, [id, value])| Frame::Put(Put {
                stream,
                remote,
                size,
                last,
                notification: NotificationId(id),
                value,
            })
        ),
        (any::<u64>(), stream(), remote.clone(), 0..=PAYLOAD_MAX).prop_map(
            |(request, stream, remote, size)| Frame::Get { request, stream, remote, size }
        ),
        (stream(), any::<String>()).prop_map(|(stream, reason)| Frame::Refused { stream, reason }),
        any::<String>().prop_map(|reason| Frame::TurnedAway { reason }),
        any::<u64>().prop_map(|puts| Frame::Ack { puts }),
        (any::<u8>(), any::<[u64; 2]>(), words, any::<Vec<u8>>()).prop_map(
            |(group, [step, signature], words, stage)| Frame::Arrive(Arrival {
                group: GroupId(group),
                step,
                signature,
                words,
                stage,
            })
        ),
        (any::<u64>(), any::<Vec<u8>>())
            .prop_map(|(request, message)| Frame::Passive { request, message }),
        any::<u64>().prop_map(|request| Frame::Withhold { request }),
        (any::<u64>(), remote, any::<u64>(), any::<u64>()).prop_map(
            |(request, remote, comparator, new)| Frame::Atomic {
                request,
                remote,
                operation: AtomicOperation::CompareSwap { comparator, new },
            }
        ),
        any::<u64>().prop_map(|count| Frame::Epoch { count }),
        (any::<u8>(), any::<u64>(), message()).prop_map(|(group, step, message)| Frame::Barrier {
            group: GroupId(group),
            step,
            message,
        }),
        Just(Frame::Kill),
        Just(Frame::Goodbye),
        Just(Frame::Release),
    ]
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
    fn a_truncated_frame_is_refused(frame in frames(), cut in any::<prop::sample::Index>()) {
        let bytes = &frame.encode()[PREFIX..];
        prop_assert_eq!(Frame::decode(&bytes[..cut.index(bytes.len())]), None);
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
