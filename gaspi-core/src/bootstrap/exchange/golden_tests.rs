//! The bytes of every kind of message and of an image of cards, byte for byte: ranks of one version
//! may run beside a launcher that was built earlier.

use super::message::{Failure, Join, Message};
use super::relay_protocol::{ToHub, ToRelay};
use crate::bootstrap::{Card, cards};
use crate::ids::Rank;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

pub(super) fn sample_card() -> Card {
    Card {
        rank: Rank(0x0102),
        pid: -2,
        start_time: 0x1112_1314_1516_1718,
        instance: 0x2122_2324_2526_2728,
        node: 0x3132_3334_3536_3738,
        machine: 0x4142_4344_4546_4748,
        endpoints: vec![
            SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), 4711),
            SocketAddr::new(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(), 80),
        ],
        host: "nodeä".into(),
        cpus: [3, u64::MAX].into(),
        networks: [(Ipv4Addr::new(198, 51, 100, 0).into(), 24)].into(),
    }
}

/// A rank of the same host and another node, whose listeners have one port.
fn neighbour() -> Card {
    let endpoints = sample_card().endpoints.into_iter().map(|at| SocketAddr::new(at.ip(), 4711));
    Card { rank: Rank(1), node: 5, endpoints: endpoints.collect(), ..sample_card() }
}

fn failures() -> [Failure; 5] {
    [
        Failure::Mismatch {
            field: "f".to_owned(),
            left: Rank(1),
            left_value: "l".to_owned(),
            right: Rank(2),
            right_value: "r".to_owned(),
        },
        Failure::Environment("env".to_owned()),
        Failure::Meeting("out".to_owned()),
        Failure::Memory { needed: 1, available: 2, reason: "m".to_owned() },
        Failure::System { call: "c".to_owned(), reason: "s".to_owned() },
    ]
}

fn messages() -> Vec<Message> {
    let agreed = vec![("group_max".to_owned(), 32), ("q".to_owned(), u64::MAX)];
    let mut all = vec![
        Message::Join(Join { job: "j1".to_owned(), size: 70_000, agreed, card: sample_card() }),
        Message::Kill(Rank(0xfffe)),
        Message::Missing { count: 9, first: vec![Rank(3), Rank(0x405)], words: "w".to_owned() },
        Message::Table { token: [7; 16], key: [8; 32] },
        Message::Over,
        Message::Leave,
        Message::Died { rank: Rank(5), how: "signal 9".to_owned() },
        Message::Unable { job: "j".to_owned(), rank: Rank(6), reason: "why".to_owned() },
    ];
    all.extend(failures().map(Message::Failed));
    all
}

fn relayed() -> Vec<Arc<[u8]>> {
    let message = || Message::Kill(Rank(1));
    let [failure, ..] = failures();
    vec![
        ToHub::Hello { version: 8 }.encode(),
        ToHub::Relayed { connection: 0x0102_0304_0506_0708, message: message() }.encode(),
        ToHub::Closed { connection: 9 }.encode(),
        ToHub::Failed { rank: Rank(2), failure }.encode(),
        ToHub::Started { rank: Rank(3), pid: -7 }.encode(),
        ToHub::Gone { rank: Rank(4), how: "exit status 1".to_owned() }.encode(),
        ToRelay::Hello { version: 8 }.encode(),
        ToRelay::Send { connections: vec![1, 2], message: message() }.encode(),
        ToRelay::Refuse { connections: vec![3], message: message() }.encode(),
        ToRelay::Cards(vec![1, 2, 3]).encode(),
        ToRelay::Table { connections: vec![4], token: [5; 16], key: [6; 32], last: true }.encode(),
        ToRelay::Kill(Rank(8)).encode(),
        ToRelay::Died { rank: Rank(9), how: "d".to_owned() }.encode(),
        ToRelay::Over.encode(),
    ]
}

#[test]
fn bytes_on_the_wire_stay_the_same() {
    let frames = messages().iter().map(Message::encode).collect::<Vec<_>>();
    let relayed = relayed();
    let all = frames.iter().map(Vec::as_slice).chain(relayed.iter().map(|frame| &**frame));
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let image = cards::encode(&[sample_card(), neighbour()]);
    let actual: Vec<String> = all.chain([&image[..]]).map(hex).collect();
    let expected: Vec<&str> = include_str!("golden.txt").lines().collect();
    assert_eq!(actual, expected, "\n{}", actual.join("\n"));
    for (message, frame) in messages().iter().zip(&frames) {
        assert_eq!(Message::decode(frame), Ok(Some((message.clone(), frame.len()))));
    }
}
