//! Jobs of very many ranks: the real hub and the frames of its relays, whose ranks are played.

use super::*;
use crate::bootstrap::card::Card;
use crate::bootstrap::cards;
use crate::bootstrap::cards::tests::cards_of_hosts;
use crate::bootstrap::exchange::message::Join;
use crate::bootstrap::exchange::relay_protocol::{CARDS_BYTES_MAX, RelayDecoder, VERSION};
use std::time::Instant;

/// What the hub has said to a host.
#[derive(Debug, Default, PartialEq, Eq)]
struct ToldHost {
    frames: usize,
    bytes: usize,
    /// Frames among them that name who is missing.
    missing: usize,
    /// Frames with cards.
    cards: usize,
    /// Ranks that have got the table.
    ranks: usize,
    /// Frames that tell of a death.
    deaths: usize,
}

impl ToldHost {
    /// What there is for the host with this link, which has decoded with `decoder` before.
    fn take(hub: &mut Server, link: RelayId, decoder: &mut RelayDecoder) -> ToldHost {
        let mut said = ToldHost::default();
        for bytes in hub.take(link) {
            said.bytes += bytes.len();
            decoder.feed(&bytes);
        }
        while let Some(frame) = decoder.next::<ToRelay>().expect("a frame") {
            said.frames += 1;
            match frame {
                ToRelay::Send { message: Message::Missing { .. }, .. } => said.missing += 1,
                ToRelay::Cards(_) => said.cards += 1,
                ToRelay::Table { connections, .. } => said.ranks += connections.len(),
                ToRelay::Died { .. } => said.deaths += 1,
                _ => {}
            }
        }
        said
    }
}

/// All ranks of a job meet, host after host, and one of them dies. Returns what the first host has
/// said, what the first and the last one have been told at the start, and the bytes that all have
/// been told.
fn meet(size: u32, per_host: u16) -> (usize, [ToldHost; 2], usize) {
    let told = cards_of_hosts(size, per_host, false);
    let hosts: Vec<&[Card]> = told.chunks(per_host.into()).collect();
    let names = told.iter().map(|card| card.host.to_string()).collect();
    let mut hub = Server::hub("j", names).expect("hub");
    let ranks = |cards: &&[Card]| cards.iter().map(|card| card.rank).collect::<Vec<Rank>>();
    let links: Vec<RelayId> = hosts.iter().map(|cards| hub.add_relay(&ranks(cards))).collect();
    let (mut first, began) = (0, Instant::now());
    for (link, cards) in links.iter().zip(&hosts) {
        let mut bytes = ToHub::Hello { version: VERSION }.encode().to_vec();
        for card in *cards {
            let agreed = vec![("group_max".to_owned(), 32), ("queue_num".to_owned(), 8)];
            let join = Join { job: "j".to_owned(), size, agreed, card: card.clone() };
            let (connection, message) = (card.rank.0.into(), Message::Join(join));
            bytes.extend_from_slice(&ToHub::Relayed { connection, message }.encode());
        }
        hub.feed(*link, &bytes).expect("the host is understood");
        first = if link == &links[0] { bytes.len() } else { first };
    }
    println!("{size} ranks on {} hosts have met after {:?}", hosts.len(), began.elapsed());
    let mut decoders: Vec<_> = links.iter().map(|_| RelayDecoder::default()).collect();
    let both = links.iter().zip(&mut decoders);
    let mut said: Vec<ToldHost> =
        both.map(|(link, decoder)| ToldHost::take(&mut hub, *link, decoder)).collect();
    let image = cards::encode(&told).len();
    let parts = image.div_ceil(CARDS_BYTES_MAX);
    for (said, cards) in said.iter().zip(&hosts) {
        assert_eq!((said.ranks, said.cards), (cards.len(), parts));
        // The cards and the table; the decoder keeps Hello for itself.
        assert_eq!(said.frames, parts + 1 + said.missing);
    }
    // A death is told to each host once, however many ranks it has.
    let how = "was killed".to_owned();
    hub.feed(links[1], &ToHub::Gone { rank: Rank(per_host), how }.encode()).expect("understood");
    let decoders = links.iter().zip(&mut decoders);
    let deaths = decoders.map(|(link, decoder)| ToldHost::take(&mut hub, *link, decoder));
    for (host, news) in deaths.enumerate() {
        assert_eq!((news.frames, news.deaths), (1, 1), "host {host}");
    }
    let all = said.iter().map(|said| said.bytes).sum();
    let last = said.pop().expect("hosts");
    (first, [said.swap_remove(0), last], all)
}

/// What a start costs between the hosts, byte by byte: the same in each run.
#[test]
fn bytes_of_a_start_of_10_000_ranks() {
    let (up, [first, last], all) = meet(10_000, 100);
    let expected = (16_507, 362_840, 348_676, 36_122_727);
    assert_eq!((up, first.bytes, last.bytes, all), expected, "{first:?} {last:?}");
}

/// With GASPI_TEST_FULL only: it takes some seconds without optimisation.
#[test]
fn bytes_of_a_start_of_65_535_ranks() {
    if std::env::var_os("GASPI_TEST_FULL").is_some() {
        let (up, [first, last], all) = meet(65_535, 64);
        let expected = (10_567, 2_216_480, 2_201_906, 2_269_361_056);
        assert_eq!((up, first.bytes, last.bytes, all), expected, "{first:?} {last:?}");
    }
}
