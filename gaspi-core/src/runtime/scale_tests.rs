//! What a rank keeps for ranks that it does not talk to: one real rank, whose meeting plays all
//! others.

use super::*;
use crate::bootstrap::exchange::message::{Join, Message};
use crate::bootstrap::exchange::relay_protocol::{ToHub, VERSION};
use crate::bootstrap::job::ServerLocation;
use crate::bootstrap::{ATOMICS_FIELD, Card, Server};
use crate::config::Topology;
use crate::fuzzed::live_bytes;
use crate::ids::NotificationId;
use crate::segment::Init;
use std::sync::{Barrier, mpsc};
use std::thread;

const LIMIT: Timeout = Timeout::Millis(60_000);
/// Ranks of each other host.
const PER_HOST: u32 = 100;
/// What is promised: private memory for each rank that this one does not talk to (docs/scale.md),
/// and what init takes beside that.
const BYTES_OF_A_PEER: f64 = 64.0;
const FIXED_BYTES: f64 = 512.0 * 1024.0;
/// Threads that call the library, beside the one of init.
const THREADS: usize = 8;
/// What each of them takes at most, however many ranks there are: its stack, and pages of tables.
const BYTES_OF_A_THREAD: f64 = 64.0 * 1024.0;

/// What the relay of the other hosts says for one of their ranks.
fn joins(job: &Job, config: &Config, rank: u32, per_host: u32) -> Arc<[u8]> {
    let host = rank / per_host;
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

/// How the first rank of so many joins: its meeting plays all others.
fn job_of_stubs(size: u32, server: &str) -> (Job, Config) {
    let server = ServerLocation::Launcher(server.to_owned());
    let id = format!("stubs-{size}");
    let job = Job { server, spans_hosts: true, ..Job::in_process(&id, Rank(0), size) };
    (job, Config { topology: Topology::Dynamic, ..Config::default() })
}

/// Runs what needs the meeting of so many ranks, all others of which are played.
fn beside_stubs<T>(size: u32, per_host: u32, run: impl FnOnce(Job, Config) -> T) -> T {
    let id = format!("stubs-{size}");
    let mut hub = Server::hub(&id, vec!["host".to_owned(); size as usize]).unwrap();
    let (job, config) = job_of_stubs(size, hub.name());
    let others: Vec<Rank> = (1..size).map(|rank| Rank(rank as u16)).collect();
    let link = hub.add_relay(&others);
    hub.feed(link, &ToHub::Hello { version: VERSION }.encode()).unwrap();
    for rank in 1..size {
        hub.feed(link, &joins(&job, &config, rank, per_host)).unwrap();
        hub.take(link);
    }
    let (stop, stopped) = mpsc::channel::<()>();
    let serving = thread::spawn(move || {
        while stopped.try_recv() == Err(mpsc::TryRecvError::Empty) {
            hub.serve();
            thread::yield_now();
        }
    });
    let outcome = run(job, config);
    drop(stop);
    serving.join().unwrap();
    outcome
}

/// Bytes that the first of so many ranks has allocated once it has joined.
fn bytes_of_a_rank(size: u32) -> isize {
    beside_stubs(size, PER_HOST, |job, config| {
        let before = live_bytes();
        let runtime = PendingInit::new(job, config).unwrap().wait(LIMIT).unwrap();
        let bytes = live_bytes() - before;
        assert_eq!(
            runtime.host_of(Rank(size as u16 - 1)).unwrap(),
            format!("node{:04}", (size - 1) / PER_HOST)
        );
        runtime.term(LIMIT).unwrap();
        bytes
    })
}

/// Private memory of this process in bytes. Files in memory that ranks of a machine share are not
/// counted, even where only one maps them.
fn private_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

/// Private memory that more threads take which notify this rank, while they live: for each.
fn private_memory_of_a_thread(runtime: &Runtime) -> f64 {
    let segment = SegmentId(0);
    runtime.segment_alloc(segment, 4096, Init::Zeroed).unwrap();
    let before = private_memory();
    let all_have_notified = Barrier::new(THREADS + 1);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let (notification, queue) = (NotificationId(0), QueueId(0));
                runtime.notify(Rank(0), segment, notification, 1, queue, LIMIT).unwrap();
                all_have_notified.wait();
                all_have_notified.wait();
            });
        }
        all_have_notified.wait();
        let taken = private_memory() - before;
        all_have_notified.wait();
        taken as f64 / THREADS as f64
    })
}

/// What a process of its own tells of its private memory: the name of the server and the ranks.
const PROCESS: &str = "GASPI_TEST_PROCESS_OF_STUBS";

/// The first rank of so many in a process of its own, which the test below starts.
#[test]
#[ignore = "a process of the test of private memory"]
fn a_process_beside_stubs() {
    let told = std::env::var(PROCESS).unwrap();
    let (size, server) = told.split_once(' ').unwrap();
    let before = private_memory();
    let (job, config) = job_of_stubs(size.parse().unwrap(), server);
    let runtime = PendingInit::new(job, config).unwrap().wait(LIMIT).unwrap();
    println!("private {} bytes", private_memory() - before);
    let of_a_thread = private_memory_of_a_thread(&runtime);
    assert!(of_a_thread <= BYTES_OF_A_THREAD, "{of_a_thread} bytes for each thread");
    runtime.term(LIMIT).unwrap();
}

/// Bytes of private memory by which the process of the first of so many ranks grows as it joins.
fn private_memory_of_a_rank(size: u32, per_host: u32) -> f64 {
    beside_stubs(size, per_host, |job, _| {
        let ServerLocation::Launcher(name) = &job.server else { unreachable!() };
        let test = "runtime::scale_tests::a_process_beside_stubs";
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--nocapture", test])
            .env(PROCESS, format!("{size} {name}"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let bytes = text.split("private ").nth(1).and_then(|rest| rest.split(' ').next());
        let bytes = bytes.and_then(|bytes| bytes.parse().ok());
        bytes.filter(|_| output.status.success()).unwrap_or_else(|| panic!("{output:?}"))
    })
}

#[test]
fn a_process_takes_little_memory_for_ranks_that_it_does_not_talk_to() {
    for per_host in [100, 1] {
        let [few, many] = [4_000, 40_000].map(|size| private_memory_of_a_rank(size, per_host));
        let each = (many - few) / 36_000.0;
        println!("{each} bytes for each rank, {few} with 4,000, {per_host} on a host");
        assert!(each <= BYTES_OF_A_PEER, "{each} bytes for each rank, {per_host} on a host");
        let fixed = few - 4_000.0 * BYTES_OF_A_PEER;
        assert!(fixed <= FIXED_BYTES, "{fixed} bytes beside those for each rank");
    }
}

#[test]
fn a_rank_that_nobody_talks_to_takes_little_memory() {
    let [few, many] = [2_000, 10_000].map(bytes_of_a_rank);
    let each = (many - few) as f64 / 8_000.0;
    // Cards of its own and rows in tables were 630.
    assert!(each <= BYTES_OF_A_PEER, "{each} bytes for each rank");
}
