//! What a rank keeps for ranks that it does not talk to: one real rank, whose meeting plays all
//! others.

use super::*;
use crate::bootstrap::exchange::message::{Join, Message};
use crate::bootstrap::exchange::relay_protocol::{ToHub, VERSION};
use crate::bootstrap::job::ServerLocation;
use crate::bootstrap::{ATOMICS_FIELD, Card, Server};
use crate::config::Topology;
use crate::fuzzed::live_bytes;
use std::sync::mpsc;
use std::thread;

const LIMIT: Timeout = Timeout::Millis(60_000);
/// Ranks of each other host.
const PER_HOST: u32 = 100;

/// What the relay of the other hosts says for one of their ranks.
fn joins(job: &Job, config: &Config, rank: u32) -> Arc<[u8]> {
    let host = rank / PER_HOST;
    let mut agreed: Vec<(String, u64)> =
        config.agreed().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    agreed.push((ATOMICS_FIELD.to_owned(), 0));
    let address = std::net::Ipv4Addr::from(0x0a00_0000 + host);
    let card = Card {
        rank: Rank(rank as u16),
        pid: 1000,
        start_time: 1,
        instance: rank.into(),
        node: host.into(),
        machine: host.into(),
        endpoints: vec![std::net::SocketAddr::new(address.into(), 9)],
        host: format!("node{host:04}").into(),
        cpus: [u64::MAX].into(),
        networks: [].into(),
    };
    let join = Join { job: job.id.clone(), size: job.size, agreed, card };
    ToHub::Relayed { connection: rank.into(), message: Message::Join(join) }.encode()
}

/// Bytes that the first of so many ranks has allocated once it has joined. Lists that init makes
/// for a moment count where another thread frees them.
fn bytes_of_a_rank(size: u32) -> isize {
    let id = format!("stubs-{size}");
    let mut hub = Server::hub(&id, vec!["host".to_owned(); size as usize]).unwrap();
    let server = ServerLocation::Launcher(hub.name().to_owned());
    let job = Job { server, spans_hosts: true, ..Job::in_process(&id, Rank(0), size) };
    let config = Config { topology: Topology::Dynamic, ..Config::default() };
    let others: Vec<Rank> = (1..size).map(|rank| Rank(rank as u16)).collect();
    let link = hub.add_relay(&others);
    hub.feed(link, &ToHub::Hello { version: VERSION }.encode()).unwrap();
    for rank in 1..size {
        hub.feed(link, &joins(&job, &config, rank)).unwrap();
        hub.take(link);
    }
    let (stop, stopped) = mpsc::channel::<()>();
    let serving = thread::spawn(move || {
        while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
            hub.serve();
            thread::yield_now();
        }
    });
    let before = live_bytes();
    let runtime = PendingInit::new(job, config).unwrap().wait(LIMIT).unwrap();
    let bytes = live_bytes() - before;
    assert_eq!(
        runtime.host_of(Rank(size as u16 - 1)).unwrap(),
        format!("node{:04}", (size - 1) / PER_HOST)
    );
    runtime.term(LIMIT).unwrap();
    drop(stop);
    serving.join().unwrap();
    bytes
}

#[test]
fn a_rank_that_nobody_talks_to_takes_little_memory() {
    let [few, many] = [2_000, 10_000].map(bytes_of_a_rank);
    let each = (many - few) as f64 / 8_000.0;
    // 41 stay; with lists of a moment up to 138 were counted. Cards of its own and rows in tables
    // were 630.
    assert!(each <= 300.0, "{each} bytes for each rank");
}
