//! Envelopes survive the way through bytes, in pieces of any size; nothing else does harm.

use super::*;
use crate::bootstrap::exchange::encoding::tests as messages;
use crate::bootstrap::exchange::message;
use crate::wire::codec::DecodeError;
use proptest::prelude::*;

fn up() -> impl Strategy<Value = ToHub> {
    prop_oneof![
        (any::<u64>(), messages::message())
            .prop_map(|(connection, message)| ToHub::Relayed { connection, message }),
        any::<u64>().prop_map(|connection| ToHub::Closed { connection }),
        (any::<u16>(), messages::failure())
            .prop_map(|(rank, failure)| ToHub::Failed { rank: Rank(rank), failure }),
        (any::<u16>(), any::<i32>())
            .prop_map(|(rank, pid)| ToHub::Started { rank: Rank(rank), pid }),
        (any::<u16>(), ".{0,60}").prop_map(|(rank, how)| ToHub::Gone { rank: Rank(rank), how }),
    ]
}

fn down() -> impl Strategy<Value = ToRelay> {
    let to = || prop::collection::vec(any::<u64>(), 0..9);
    prop_oneof![
        (to(), messages::message())
            .prop_map(|(connections, message)| ToRelay::Send { connections, message }),
        (to(), messages::message())
            .prop_map(|(connections, message)| ToRelay::Refuse { connections, message }),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(ToRelay::Cards),
        (to(), any::<[u8; 16]>(), any::<[u8; 32]>(), any::<bool>()).prop_map(
            |(connections, token, key, last)| ToRelay::Table { connections, token, key, last }
        ),
        any::<u16>().prop_map(|rank| ToRelay::Kill(Rank(rank))),
        (any::<u16>(), ".{0,60}").prop_map(|(rank, how)| ToRelay::Died { rank: Rank(rank), how }),
        Just(ToRelay::Over),
    ]
}

fn through<T: RelayFrame>(hello: Arc<[u8]>, frames: &[Arc<[u8]>], piece: usize) -> Decoded<Vec<T>> {
    let bytes: Vec<u8> =
        std::iter::once(&hello).chain(frames).flat_map(|frame| frame.to_vec()).collect();
    let mut decoder = RelayDecoder::default();
    let mut got = Vec::new();
    for piece in bytes.chunks(piece) {
        decoder.feed(piece);
        while let Some(frame) = decoder.next()? {
            got.push(frame);
        }
    }
    Ok(got)
}

fn hellos() -> (Arc<[u8]>, Arc<[u8]>) {
    (ToHub::Hello { version: VERSION }.encode(), ToRelay::Hello { version: VERSION }.encode())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_packed_is_unpacked(
        ups in prop::collection::vec(up(), 0..6),
        downs in prop::collection::vec(down(), 0..6),
        piece in 1usize..300,
    ) {
        let frames: Vec<Arc<[u8]>> = ups.iter().map(ToHub::encode).collect();
        prop_assert_eq!(through(hellos().0, &frames, piece), Ok(ups));
        let frames: Vec<Arc<[u8]>> = downs.iter().map(ToRelay::encode).collect();
        prop_assert_eq!(through(hellos().1, &frames, piece), Ok(downs));
    }
}

#[test]
fn the_greeting_comes_first_and_once() {
    let closed = ToHub::Closed { connection: 1 }.encode();
    let other = ToHub::Hello { version: VERSION + 1 }.encode();
    let run = |hello: &Arc<[u8]>, frames: &[Arc<[u8]>]| through::<ToHub>(hello.clone(), frames, 3);
    assert_eq!(run(&other, &[]), Err(DecodeError::Version(VERSION + 1)));
    assert_eq!(run(&closed, &[]), Err(DecodeError::Invalid("no greeting")));
    let hello = hellos().0;
    assert_eq!(
        run(&hello, std::slice::from_ref(&hello)),
        Err(DecodeError::Invalid("a second greeting"))
    );
    // The directions are told apart.
    assert!(through::<ToRelay>(hello, &[], 3).is_err());
}

#[test]
fn the_largest_frames_fit() {
    let text = "x".repeat(message::TEXT_MAX);
    let cards = vec![1; CARDS_BYTES_MAX + 1];
    let connections = vec![u64::MAX; CONNECTIONS_MAX + 1];
    let message = Message::Failed(Failure::Meeting(text));
    let frames = [ToRelay::Cards(cards).encode(), ToRelay::Send { connections, message }.encode()];
    assert!(frames.iter().all(|frame| frame.len() <= RELAY_FRAME_MAX));
    let sent = through::<ToRelay>(hellos().1, &frames[1..], 1000).expect("understood");
    assert!(matches!(&sent[..], [ToRelay::Send { connections, .. }] if connections.len() == 4096));
}

#[test]
fn mutated_envelopes_do_no_harm() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut samples: Vec<Arc<[u8]>> = Vec::new();
    for _ in 0..128 {
        samples.push(up().new_tree(&mut runner).expect("up").current().encode());
        samples.push(down().new_tree(&mut runner).expect("down").current().encode());
    }
    let (up, down) = hellos();
    crate::fuzzed::run("envelope", 512 * 1024, |seed| {
        let sample = seed.below(samples.len() as u64) as usize;
        let mut bytes = samples[sample].to_vec();
        seed.mutate(&mut bytes);
        if seed.below(2) == 0 && bytes.len() >= 4 {
            // A length that fits, so that the fields are looked at.
            let len = bytes.len() as u32 - 4;
            bytes[..4].copy_from_slice(&len.to_le_bytes());
        }
        if sample.is_multiple_of(2) {
            let _ = through::<ToHub>(up.clone(), &[bytes.into()], 4096);
        } else {
            let _ = through::<ToRelay>(down.clone(), &[bytes.into()], 4096);
        }
    });
}
