//! One connection carries the requests of both of its ranks: what holds while both open it at once,
//! fill it from both sides, stop using it, or leave, and who sends what nobody waits for.

#[macro_use]
#[path = "../ranks/mod.rs"]
mod ranks;

mod few_connections;

use gaspi_core::*;
use ranks::{LIMIT, Nodes, run_over};
use std::mem::size_of;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

fn main() -> std::process::ExitCode {
    ranks::run_tests([tests(), few_connections::tests()])
}

const S0: SegmentId = SegmentId(0);
const Q0: QueueId = QueueId(0);
/// What must come soon: far more than that takes.
const SOON: Duration = Duration::from_secs(20);

/// Tests that count the sockets of this process have it to themselves.
static ALONE: Mutex<()> = Mutex::new(());

fn make(rt: &Runtime, size: u64) {
    rt.segment_create(S0, size, GroupId::ALL, LIMIT, Init::Zeroed).expect("create");
}

fn other(rt: &Runtime) -> Rank {
    Rank(1 - rt.rank().0)
}

/// A write to the same place of `rank`.
fn to(rank: Rank, offset: u64, size: u64) -> Transfer {
    Transfer { local: S0, local_offset: offset, rank, remote: S0, remote_offset: offset, size }
}

fn word(rt: &Runtime, offset: u64) -> u64 {
    let mut bytes = [0; 8];
    rt.segment_read(S0, offset, &mut bytes).expect("inside");
    u64::from_ne_bytes(bytes)
}

/// Waits for a notification and takes it.
fn take(rt: &Runtime, id: u32) -> u32 {
    rt.notify_waitsome(S0, id, 1, LIMIT).expect("it comes");
    rt.notify_reset(S0, NotificationId(id)).expect("reset")
}

/// How many sockets of this process are connected by TCP.
fn sockets() -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").expect("the kernel's list");
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let connected = |fd: &i32| {
        // SAFETY: an address is plain bytes.
        let mut address: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        // SAFETY: the address has room for `len` bytes.
        let found = unsafe { libc::getpeername(*fd, (&raw mut address).cast(), &raw mut len) };
        let family = i32::from(address.ss_family);
        found == 0 && (family == libc::AF_INET || family == libc::AF_INET6)
    };
    numbers.filter(connected).count()
}

/// Ranks turn to each other at the same moment, more or less: all arrives in order, and one
/// connection for each pair remains. Ranks of one machine need no other one to watch each other.
fn ranks_that_connect_to_each_other_at_once_end_up_with_one_connection() {
    const RANKS: u32 = 3;
    const PAIRS: usize = 3;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let config = Config { topology: Topology::Dynamic, ..Config::default() };
    for seed in 0..40u64 {
        let together = Barrier::new(RANKS as usize);
        run_over(Nodes::Each, RANKS, &config, |rt| {
            rt.segment_alloc(S0, 4096, Init::Zeroed).expect("alloc");
            together.wait();
            // Rank and seed decide how much later this one begins.
            let late = (seed * 7 + u64::from(rt.rank().0) * 13) % 5 * 40;
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_micros(late) {
                std::hint::spin_loop();
            }
            for rank in ranks::others(&rt) {
                rt.segment_register(S0, rank, LIMIT).expect("register");
            }
            together.wait();
            let own = u64::from(rt.rank().0) * 8;
            for value in 1..=20u64 {
                for rank in ranks::others(&rt) {
                    rt.segment_write(S0, own, &value.to_ne_bytes()).expect("inside");
                    let id = NotificationId(u32::from(rt.rank().0));
                    rt.write_notify(&to(rank, own, 8), id, value as u32, Q0, LIMIT).expect("post");
                }
                for rank in ranks::others(&rt) {
                    assert_eq!(u64::from(take(&rt, u32::from(rank.0))), value, "seed {seed}");
                    assert_eq!(word(&rt, u64::from(rank.0) * 8), value, "seed {seed}");
                }
                rt.wait(Q0, LIMIT).expect("wait");
                together.wait();
            }
            let begin = Instant::now();
            // Two connections more, by which news of ends come.
            while rt.rank() == Rank(0) && sockets() > 2 * (PAIRS + 2) {
                assert!(begin.elapsed() < SOON, "seed {seed}: {} sockets", sockets());
                rt.ping(Rank(1), LIMIT).expect("it lives");
            }
            together.wait();
            rt.term(LIMIT).expect("term");
        });
    }
}

/// A rank in the midst of the tree of all has arrived at a barrier and leaves before it is
/// complete: the others complete it, and need not connect each with each for that.
fn a_rank_that_leaves_behind_an_unfinished_barrier_has_arrived() {
    const RANKS: u16 = 16;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let most = usize::from(RANKS * (RANKS - 1));
    for leaving in [Rank(0), Rank(8), Rank(12), Rank(13)] {
        let together = Barrier::new(RANKS.into());
        run_over(Nodes::Each, RANKS.into(), &Config::default(), |rt| {
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            together.wait();
            if rt.rank() != Rank(15) {
                rt.barrier(GroupId::ALL, Timeout::Test).expect_err("rank 15 is late");
            }
            together.wait();
            if rt.rank() == leaving {
                rt.term(LIMIT).expect("term");
            }
            together.wait();
            if rt.rank() == leaving {
                together.wait();
                return;
            }
            let passed = rt.barrier(GroupId::ALL, LIMIT);
            passed.unwrap_or_else(|error| panic!("{} without {leaving}: {error}", rt.rank()));
            assert!(sockets() < most, "{} sockets", sockets());
            together.wait();
            rt.term(LIMIT).expect("term");
        });
    }
}

/// Both ranks fill the sockets of their connection, on several queues, before either waits.
fn traffic_from_both_sides_fills_a_connection_and_gets_through() {
    const PART: u64 = 3 << 20;
    const QUEUES: u64 = 4;
    const ROUNDS: u64 = 6;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let together = Barrier::new(2);
    run_over(Nodes::Each, 2, &Config::default(), |rt| {
        // Own parts, and those of the peer; what is read goes behind them.
        make(&rt, 3 * QUEUES * PART);
        let (peer, own) = (other(&rt), u64::from(rt.rank().0) * QUEUES * PART);
        let theirs = u64::from(peer.0) * QUEUES * PART;
        for round in 1..=ROUNDS {
            // Until the peer has read what this rank wrote before.
            together.wait();
            for queue in 0..QUEUES {
                let value = round << 32 | u64::from(rt.rank().0) << 8 | queue;
                let bytes = value.to_ne_bytes().repeat(PART as usize / 8);
                rt.segment_write(S0, own + queue * PART, &bytes).expect("inside");
            }
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            together.wait();
            for queue in 0..QUEUES {
                let id = NotificationId(queue as u32);
                let q = QueueId(queue as u8);
                let put = to(peer, own + queue * PART, PART);
                rt.write_notify(&put, id, round as u32, q, LIMIT).expect("post");
                let get = Transfer {
                    local_offset: 2 * QUEUES * PART + queue * PART,
                    remote_offset: theirs + queue * PART,
                    ..put
                };
                rt.read(&get, q, LIMIT).expect("post");
            }
            together.wait();
            for queue in 0..QUEUES {
                rt.wait(QueueId(queue as u8), LIMIT).expect("wait");
                assert_eq!(u64::from(take(&rt, queue as u32)), round);
                let value = round << 32 | u64::from(peer.0) << 8 | queue;
                for part in [theirs, 2 * QUEUES * PART] {
                    let begin = part + queue * PART;
                    for offset in [begin, begin + PART / 2, begin + PART - 8] {
                        assert_eq!(word(&rt, offset), value, "offset {offset} in round {round}");
                    }
                }
            }
        }
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        rt.term(LIMIT).expect("term");
    });
}

/// One side stops using the connection all the time, the other one uses it all the time.
fn a_rank_that_disconnects_breaks_no_request_of_its_peer() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let busy = AtomicU64::new(1);
    run_over(Nodes::Each, 2, &Config::default(), |rt| {
        make(&rt, 1 << 20);
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        let peer = other(&rt);
        if rt.rank() == Rank(0) {
            for round in 0..1000u64 {
                let size = if round % 3 == 0 { 1 << 18 } else { 8 };
                rt.write(&to(peer, 0, size), Q0, LIMIT).expect("post");
                if round % 2 == 0 {
                    rt.read(&to(peer, 1 << 19, size), Q0, LIMIT).expect("post");
                }
                rt.wait(Q0, LIMIT).unwrap_or_else(|error| panic!("round {round}: {error}"));
            }
            busy.store(0, Ordering::Release);
        } else {
            let mut times = 0;
            while busy.load(Ordering::Acquire) == 1 || times < 10 {
                rt.disconnect(peer, LIMIT).expect("disconnect");
                rt.ping(peer, LIMIT).expect("it lives");
                times += 1;
            }
        }
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        // All but the last connections come to their end: one for data, and one that watches, or
        // two if both ranks have made it at once.
        let begin = Instant::now();
        while rt.rank() == Rank(0) && sockets() > 2 * 3 {
            assert!(begin.elapsed() < SOON, "{} sockets are left", sockets());
            rt.ping(peer, LIMIT).expect("it lives");
        }
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        rt.term(LIMIT).expect("term");
    });
}

/// Posts in quick succession are held back for a moment; nobody has to call for them to go out.
fn what_was_held_back_goes_out_though_the_rank_never_calls_again() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let together = Barrier::new(2);
    run_over(Nodes::Each, 2, &Config::default(), |rt| {
        make(&rt, 4096);
        for round in 1..=100u32 {
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            if rt.rank() == Rank(0) {
                for id in 0..20 + round {
                    rt.notify(Rank(1), S0, NotificationId(id), round, Q0, LIMIT).expect("post");
                }
            } else {
                // Not in order: the last one first.
                for id in (0..20 + round).rev() {
                    assert_eq!(take(&rt, id), round);
                }
            }
            together.wait();
            rt.wait(Q0, LIMIT).expect("wait");
        }
        rt.term(LIMIT).expect("term");
    });
}

/// Whoever looked after the sockets last, and however long ago: a target that computes
/// acknowledges.
fn a_target_that_stopped_calling_acknowledges() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let together = Barrier::new(2);
    run_over(Nodes::Each, 2, &Config::default(), |rt| {
        make(&rt, 4096);
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        for round in 1..=300u64 {
            if rt.rank() == Rank(0) {
                // From at once to so late that the target sleeps, or has given the sockets back.
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_micros(round % 10 * 300) {
                    std::thread::yield_now();
                }
                let put = to(Rank(1), 0, 8);
                rt.write_notify(&put, NotificationId(0), 1, Q0, LIMIT).expect("post");
                if round % 2 == 0 {
                    // The target does not call while this rank waits.
                    rt.wait(Q0, LIMIT).expect("acknowledged");
                    together.wait();
                } else {
                    together.wait();
                    rt.wait(Q0, LIMIT).expect("acknowledged");
                }
            } else {
                assert_eq!(take(&rt, 0), 1);
                together.wait();
            }
        }
        together.wait();
        rt.term(LIMIT).expect("term");
    });
}

/// What a rank posted and waited for before it left is there, though the peer fills the same
/// connection meanwhile; the peer hears that it has left.
fn a_rank_leaves_while_its_peer_sends_on_the_same_connection() {
    const SIZE: u64 = 1 << 20;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for round in 1..=20u64 {
        run_over(Nodes::Each, 2, &Config::default(), |rt| {
            make(&rt, 4 * SIZE);
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            let peer = other(&rt);
            if rt.rank() == Rank(round as u16 % 2) {
                rt.segment_write(S0, 0, &round.to_ne_bytes().repeat(SIZE as usize / 8))
                    .expect("in");
                rt.write_notify(&to(peer, 0, SIZE), NotificationId(1), 1, Q0, LIMIT).expect("post");
                rt.term(LIMIT).expect("term");
                return;
            }
            let queues = [QueueId(1), QueueId(2)];
            let mut posted = 0;
            let reason = loop {
                let queue = queues[posted % 2];
                posted += 1;
                let size = if posted % 3 == 0 { 8 } else { SIZE };
                let done = rt.write(&to(peer, 2 * SIZE, size), queue, LIMIT);
                let done = if posted % 4 < 2 { done.and(rt.wait(queue, LIMIT)) } else { done };
                if let Err(error) = done {
                    break error.to_string();
                }
            };
            assert!(!reason.contains("died"), "{reason}");
            assert_eq!(take(&rt, 1), 1);
            assert_eq!((word(&rt, 0), word(&rt, SIZE - 8)), (round, round));
            let begin = Instant::now();
            loop {
                match rt.ping(peer, LIMIT) {
                    Err(Error::RankLeft { .. }) => break,
                    Err(Error::RankDied { .. }) => panic!("taken for dead, after: {reason}"),
                    _ => assert!(begin.elapsed() < SOON, "after: {reason}"),
                }
            }
            rt.term(LIMIT).expect("term");
        });
    }
}

/// What was said behind a disconnect waits on a connection that is being made, which another
/// disconnect must not take away: nobody would say it again.
fn a_rank_that_disconnects_again_at_once_loses_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    run_over(Nodes::Each, 2, &Config::default(), |rt| {
        let peer = other(&rt);
        for round in 0..200 {
            if rt.rank() == Rank(0) {
                rt.disconnect(peer, LIMIT).expect("disconnect");
            }
            rt.barrier(GroupId::ALL, LIMIT).unwrap_or_else(|error| panic!("{round}: {error}"));
            if rt.rank() == Rank(0) {
                rt.disconnect(peer, LIMIT).expect("disconnect");
            }
        }
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        rt.term(LIMIT).expect("term");
    });
}

/// With all connections made in init, ranks of one machine have one for each pair, and no other.
fn ranks_of_one_machine_have_one_connection_for_each_pair() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for ranks in [2, 3, 5, 9u32] {
        // One for each pair, and one less than there are ranks by which news of ends come.
        let both_ends = (ranks * (ranks - 1) + 2 * (ranks - 1)) as usize;
        let together = Barrier::new(ranks as usize);
        run_over(Nodes::Each, ranks, &Config::default(), |rt| {
            for rank in ranks::others(&rt) {
                rt.ping(rank, LIMIT).expect("it lives");
            }
            together.wait();
            let begin = Instant::now();
            while rt.rank() == Rank(0) && sockets() != both_ends {
                assert!(begin.elapsed() < SOON, "{ranks} ranks have {} sockets", sockets());
            }
            together.wait();
            rt.term(LIMIT).expect("term");
        });
    }
}

/// Ends a rank by its death, or in order.
fn end(rt: Runtime, dies: bool) {
    if dies {
        ranks::die(rt);
    } else {
        rt.term(LIMIT).expect("term");
    }
}

/// Ranks that have disconnected from each other hear how the other one ends, without any call.
fn a_rank_that_is_disconnected_hears_of_the_end_of_its_peer() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for dies in [true, false] {
        let together = Barrier::new(2);
        run_over(Nodes::Each, 2, &Config::default(), |rt| {
            rt.disconnect(other(&rt), LIMIT).expect("disconnect");
            together.wait();
            if rt.rank() == Rank(1) {
                end(rt, dies);
                together.wait();
                return;
            }
            together.wait();
            let begin = Instant::now();
            while dies && rt.state(Rank(1)).expect("state") == State::Healthy {
                assert!(begin.elapsed() < SOON, "nobody has told of the death");
                std::thread::yield_now();
            }
            let ended = rt.ping(Rank(1), LIMIT).expect_err("it has ended");
            let left = matches!(ended, Error::RankLeft { .. });
            assert!(left != dies, "{ended}");
            rt.term(LIMIT).expect("term");
        });
    }
}

/// The ranks that the next test has end.
const ENDED: [&[u16]; 6] = [&[7], &[0], &[4], &[0, 4], &[1, 3, 5], &[0, 1, 2, 3, 6]];

/// Ranks that have no connection with each other hear how others end, without any call: all on
/// nodes of their own, and two on each.
fn ends_are_heard_without_a_connection() {
    const RANKS: u32 = 8;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cases = ENDED.iter().flat_map(|ended| [(ended, true), (ended, false)]);
    let layouts = [
        (Nodes::Each, Topology::Static),
        (Nodes::Each, Topology::Dynamic),
        (Nodes::Pairs, Topology::Dynamic),
        (Nodes::Pairs, Topology::Static),
    ];
    for ((nodes, topology), (ended, die)) in
        cases.flat_map(|case| layouts.map(|layout| (layout, case)))
    {
        let config = Config { topology, ..Config::default() };
        let together = Barrier::new(RANKS as usize);
        let last = Barrier::new(RANKS as usize - ended.len());
        run_over(nodes, RANKS, &config, |rt| {
            // One that dies while others join is why they do not.
            together.wait();
            if ended.contains(&rt.rank().0) {
                end(rt, die);
                together.wait();
                return;
            }
            together.wait();
            for rank in ended.iter().copied().map(Rank) {
                let begin = Instant::now();
                while die && rt.state(rank).expect("state") == State::Healthy {
                    assert!(begin.elapsed() < SOON, "{nodes:?}, {ended:?}: {rank} has died");
                    std::thread::yield_now();
                }
                let end = rt.ping(rank, LIMIT).expect_err("it has ended");
                let died = match end {
                    Error::RankDied { .. } => true,
                    Error::RankLeft { .. } => false,
                    other => panic!("{nodes:?}, {ended:?}: {other}"),
                };
                assert_eq!(died, die, "{nodes:?}, {ended:?}: {rank}");
            }
            for rank in ranks::others(&rt).filter(|rank| !ended.contains(&rank.0)) {
                rt.ping(rank, LIMIT).expect("it lives");
            }
            last.wait();
            rt.term(LIMIT).expect("term");
        });
    }
}

/// Somebody who takes the port of a dead rank once that has refused a connection.
struct Squatter {
    socket: OwnedFd,
    address: SocketAddr,
}

static SQUATTER: OnceLock<Squatter> = OnceLock::new();

impl Squatter {
    /// A port on which nobody listens.
    fn begin() -> Squatter {
        // SAFETY: plain arguments.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
        assert!(fd >= 0, "a socket");
        // SAFETY: it has just been made, for nobody else.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let loopback = libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) };
        let any = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: 0,
            sin_addr: loopback,
            sin_zero: [0; 8],
        };
        let len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        // SAFETY: an address of that length.
        let bound = unsafe { libc::bind(fd, (&raw const any).cast(), len) };
        assert_eq!(bound, 0, "a free port");
        let address = TcpListener::from(socket.try_clone().expect("a descriptor")).local_addr();
        Squatter { socket, address: address.expect("its address") }
    }

    fn listen(&self) {
        // SAFETY: a socket that lives as long as this.
        let listens = unsafe { libc::listen(self.socket.as_raw_fd(), 64) };
        assert_eq!(listens, 0, "it is bound");
    }
}

/// The squatter hears of refusals as people do.
impl log::Log for Squatter {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() == log::Level::Trace && metadata.target().ends_with("tcp::connect")
    }

    fn log(&self, record: &log::Record<'_>) {
        let is_its_place = || {
            let said = record.args().to_string();
            said.contains(&format!("may have left: {}", self.address)) && said.contains("refused")
        };
        if self.enabled(record.metadata()) && is_its_place() {
            self.listen();
        }
    }

    fn flush(&self) {}
}

/// The rank that would notice a death dies too, and somebody else takes the port of the dead.
fn a_death_is_told_though_others_listen_where_the_dead_did() {
    const RANKS: u32 = 4;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let squatter = SQUATTER.get_or_init(Squatter::begin);
    log::set_logger(squatter).expect("no other logger");
    log::set_max_level(log::LevelFilter::Trace);
    let config = Config { topology: Topology::Dynamic, ..Config::default() };
    let job = |id: &str, rank: Rank| {
        let job = Nodes::Each.job(id, rank, RANKS);
        // Only rank 0 has a connection with it, which it has made itself.
        let taken = TestProxy::new(move |_| squatter.address);
        if rank == Rank(1) { job.via_proxy(taken) } else { job }
    };
    let (together, ended) = (Barrier::new(RANKS as usize), Barrier::new(RANKS as usize));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                let socket = squatter.socket.try_clone().expect("a descriptor");
                // It fails before anybody listens.
                drop(TcpListener::from(socket).accept());
            }
        });
        ranks::run_jobs(RANKS, &config, job, |rt| {
            together.wait();
            if rt.rank().0 < 2 {
                end(rt, true);
                ended.wait();
                return;
            }
            ended.wait();
            for rank in [Rank(0), Rank(1)] {
                let begin = Instant::now();
                while rt.state(rank).expect("state") == State::Healthy {
                    assert!(begin.elapsed() < SOON, "nobody has told of the death of {rank}");
                    std::thread::yield_now();
                }
            }
            rt.term(LIMIT).expect("term");
        });
        over.store(true, Ordering::SeqCst);
        // If it listens, it may be waiting for the next one.
        drop(TcpStream::connect(squatter.address));
    });
}

tests! {
    TCP:
        ends_are_heard_without_a_connection,
        a_rank_that_leaves_behind_an_unfinished_barrier_has_arrived,
        ranks_of_one_machine_have_one_connection_for_each_pair,
        a_rank_that_is_disconnected_hears_of_the_end_of_its_peer,
        ranks_that_connect_to_each_other_at_once_end_up_with_one_connection,
        traffic_from_both_sides_fills_a_connection_and_gets_through,
        a_rank_that_disconnects_breaks_no_request_of_its_peer,
        what_was_held_back_goes_out_though_the_rank_never_calls_again,
        a_target_that_stopped_calling_acknowledges,
        a_rank_leaves_while_its_peer_sends_on_the_same_connection,
        a_rank_that_disconnects_again_at_once_loses_nothing,
        a_death_is_told_though_others_listen_where_the_dead_did;
}
