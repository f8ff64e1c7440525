//! What ranks have told comes out of an image as it went in; nothing else does harm.

use super::*;
use crate::bootstrap::exchange::encoding::tests::card as some_card;
use crate::wire::codec::DecodeError;
use proptest::prelude::*;
use std::sync::Arc;

/// All cards, as their ranks have told them.
pub(crate) fn all(cards: &Cards) -> Vec<Card> {
    let card = |view: CardView<'_>| Card {
        rank: view.rank(),
        pid: view.pid(),
        start_time: view.start_time(),
        instance: view.instance(),
        node: view.node(),
        machine: view.machine(),
        endpoints: view.endpoints().collect(),
        host: view.host().into(),
        cpus: view.cpus().collect(),
        networks: view.networks().collect(),
    };
    cards.iter().map(card).collect()
}

/// How the kernel maps an image.
#[derive(Debug)]
pub(crate) struct Mapped {
    /// Readable, writable, executable, and whether writes would be private.
    pub(crate) access: String,
    pub(crate) inode: u64,
    pub(crate) file: String,
    /// Bytes of it that are this process's own.
    pub(crate) anonymous: u64,
}

pub(crate) fn mapped(cards: &Cards) -> Mapped {
    let address = format!("{:08x}-", cards.image.as_ptr() as usize);
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("the kernel's list");
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&address));
    let head: Vec<&str> = lines.next().expect("it is mapped").split_whitespace().collect();
    let anonymous = lines.find(|line| line.starts_with("Anonymous:")).expect("what is private");
    let kib: u64 = anonymous.split_whitespace().nth(1).expect("a number").parse().expect("KiB");
    Mapped {
        access: head[1].to_owned(),
        inode: head[4].parse().expect("inode"),
        file: head[5].to_owned(),
        anonymous: kib * 1024,
    }
}

/// Cards of all ranks, some of which share hosts, cores and nodes.
fn job() -> impl Strategy<Value = Vec<Card>> {
    let parts = prop::collection::vec(some_card(), 1..5);
    let choices = prop::collection::vec(any::<([prop::sample::Index; 4], bool, bool)>(), 0..30);
    (parts, choices).prop_map(|(parts, choices)| {
        let of_rank = |(rank, (from, is_alone, alike)): (usize, _)| {
            let [own, host, cpus, node]: [&Card; 4] =
                <[prop::sample::Index; 4]>::map(from, |index| index.get(&parts));
            let port = own.pid as u16;
            let port_of = |at: &SocketAddr| if alike { port } else { at.port() };
            let ends = host.endpoints.iter().map(|at| SocketAddr::new(at.ip(), port_of(at)));
            Card {
                rank: Rank(rank as u16),
                node: if is_alone { node.node } else { host.machine },
                machine: host.machine,
                endpoints: ends.collect(),
                host: Arc::clone(&host.host),
                cpus: Arc::clone(&cpus.cpus),
                networks: Arc::clone(&host.networks),
                ..own.clone()
            }
        };
        choices.into_iter().enumerate().map(of_rank).collect()
    })
}

fn opened(image: &[u8]) -> Decoded<Cards> {
    Cards::new(Image::Own(image.into()))
}

proptest! {
    #[test]
    fn the_view_tells_what_ranks_have_told(told in job()) {
        let cards = opened(&encode(&told)).expect("an image");
        prop_assert_eq!(all(&cards), told);
    }

    #[test]
    fn only_whole_images_are_taken(
        told in job(),
        tail in prop::collection::vec(any::<u8>(), 1..9),
    ) {
        let mut image = encode(&told);
        for cut in 0..image.len() {
            prop_assert!(opened(&image[..cut]).is_err());
        }
        image.extend(tail);
        prop_assert!(opened(&image).is_err());
    }
}

#[test]
fn mutated_images_do_no_harm() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let samples: Vec<Vec<u8>> =
        (0..256).map(|_| encode(&job().new_tree(&mut runner).expect("cards").current())).collect();
    crate::fuzzed::run("image of cards", 512 * 1024, |seed| {
        let mut image = samples[seed.below(samples.len() as u64) as usize].clone();
        let len = image.len();
        seed.mutate(&mut image);
        if seed.below(2) == 0 {
            // Nothing is looked at of an image whose length does not fit.
            image.resize(len, 0);
        }
        if let Ok(cards) = opened(&image) {
            // Every field is there.
            assert!(all(&cards).len() * 32 <= image.len());
        }
    });
}

/// Ranks of hosts with two addresses, each bound to cores of its own; with TCP each is a node of
/// its own.
pub(crate) fn cards_of_hosts(size: u32, per_host: u16, by_tcp: bool) -> Vec<Card> {
    let card = |rank: u16| {
        let (host, nth) = (rank / per_host, rank % per_host);
        let [high, low] = host.to_be_bytes();
        let addresses = [[10, 0, high, low], [10, 1, high, low]];
        Card {
            rank: Rank(rank),
            pid: 4_000_000 + i32::from(nth),
            start_time: u64::from(rank) << 20,
            instance: u64::from(rank).wrapping_mul(0x9E37_79B9_7F4A_7C15),
            node: if by_tcp { u64::from(rank) << 32 } else { u64::from(host) + 7 },
            machine: u64::from(host) + 7,
            endpoints: addresses.map(|at| SocketAddr::new(at.into(), 30_000 + nth)).to_vec(),
            host: format!("node{host:04}.cluster").into(),
            cpus: [1 << (nth % 64), 0].into(),
            networks: [([10, 1, high, low].into(), 16)].into(),
        }
    };
    (0..size as u16).map(card).collect()
}

#[test]
fn a_card_takes_40_bytes_of_a_rank_and_200_of_a_host() {
    // The masks of 64 cores, and the head.
    let once = 64 * (8 + 16) + 40;
    for (size, per_host) in [(1_024, 64), (10_000, 100), (65_535, 64)] {
        for (by_tcp, of_rank) in [(false, 32), (true, 40)] {
            let told = cards_of_hosts(size, per_host, by_tcp);
            let image = encode(&told);
            let hosts = size.div_ceil(per_host.into()) as usize;
            let bytes = of_rank * size as usize + 90 * hosts + once;
            assert_eq!(image.len(), bytes, "{size} ranks, by TCP: {by_tcp}");
            assert_eq!(all(&opened(&image).expect("an image")), told);
        }
    }
}

#[test]
fn what_is_not_there_is_not_mentioned() {
    let told = cards_of_hosts(2, 1, true);
    let image = encode(&told);
    assert!(opened(&image).is_ok());
    // In the record of the last rank: its host, its mask, its node, the first of its ports.
    for at in [20, 22, 24, 30] {
        let mut image = image.clone();
        image[40 + 32 + at] += 2;
        let error = opened(&image).expect_err("it is not there");
        assert_eq!(error, DecodeError::Invalid("a card mentions what is not there"), "byte {at}");
    }
}

#[test]
fn a_machine_in_another_namespace_shows_no_processes() {
    let cards = Cards::own(&cards_of_hosts(4, 2, false)).expect("an image");
    let cards = cards.without_processes_of(8);
    let pids: Vec<i32> = cards.iter().map(CardView::pid).collect();
    assert_eq!(pids, [4_000_000, 4_000_001, 0, 0]);
}
