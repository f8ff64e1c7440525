//! Connections that are cut under traffic, at random moments by seed: every call ends, what was
//! reported as done is done, and nobody is taken for dead.

mod ranks;

use gaspi_core::*;
use ranks::{LIMIT, Nodes, run_over};
use std::mem::size_of;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const S0: SegmentId = SegmentId(0);
const RANKS: u32 = 3;
/// Bytes of each rank's part of a segment.
const PART: u64 = 1 << 20;
const ROUNDS: u64 = 2000;

/// Numbers that look random, the same for the same seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// The sockets of this process that are connected by TCP.
fn streams() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc/self/fd").expect("the kernel's list");
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    numbers.filter(|fd| is_stream(*fd)).collect()
}

fn is_stream(fd: i32) -> bool {
    // SAFETY: an address is plain bytes.
    let mut address: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: the address has room for `len` bytes.
    let connected = unsafe { libc::getpeername(fd, (&raw mut address).cast(), &raw mut len) } == 0;
    let family = i32::from(address.ss_family);
    connected && (family == libc::AF_INET || family == libc::AF_INET6)
}

/// Cuts one connection.
fn cut(numbers: &mut Numbers) -> bool {
    let found = streams();
    if found.is_empty() {
        return false;
    }
    let fd = found[(numbers.next() % found.len() as u64) as usize];
    // SAFETY: shutdown of whatever socket has this number by now: all are of this test.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
    true
}

/// One rank's traffic with another; true if all of it was done.
fn exchange(rt: &Runtime, to: Rank, round: u64, size: u64) -> bool {
    let own = u64::from(rt.rank().0) * PART;
    let queue = QueueId((round % 2) as u8);
    let value = round << 8 | u64::from(rt.rank().0);
    rt.segment_write(S0, own, &value.to_ne_bytes()).expect("inside");
    let t =
        Transfer { local: S0, local_offset: own, rank: to, remote: S0, remote_offset: own, size };
    let id = NotificationId(u32::from(rt.rank().0));
    let posted = match round % 3 {
        0 => rt.write(&t, queue, LIMIT),
        1 => rt.write_notify(&t, id, 1, queue, LIMIT),
        _ => {
            // What is read is what was written before, if that was done.
            rt.read(&Transfer { local_offset: PART * u64::from(RANKS), ..t }, queue, LIMIT)
        }
    };
    let done = posted.and_then(|()| rt.wait(queue, LIMIT));
    let Err(error) = done else { return true };
    assert!(!error.is_timeout(), "{} to {to} in round {round}: {error}", rt.rank());
    let text = error.to_string();
    assert!(!text.contains("died") && !text.contains("left"), "round {round}: {text}");
    rt.queue_purge(queue, LIMIT).expect("purge");
    false
}

#[test]
fn cuts_lose_nothing_silently_and_kill_nobody() {
    let (over, done, failed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let ended = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
            while !over.load(Ordering::Relaxed) {
                if done.load(Ordering::Relaxed) > 10 {
                    cut(&mut numbers);
                }
                // The distance between cuts, nothing that is waited for.
                std::thread::sleep(Duration::from_millis(numbers.next() % 4));
            }
        });
        run_over(Nodes::Each, RANKS, &Config::default(), |rt| {
            rt.segment_create(S0, PART * 4, GroupId::ALL, LIMIT, Init::Zeroed).expect("create");
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            let mut numbers = Numbers(u64::from(rt.rank().0) + 1);
            for round in 1..=ROUNDS {
                let to = Rank(((u64::from(rt.rank().0) + 1 + numbers.next() % 2) % 3) as u16);
                let size = if numbers.next().is_multiple_of(4) { PART } else { 8 };
                let count = if exchange(&rt, to, round, size) { &done } else { &failed };
                count.fetch_add(1, Ordering::Relaxed);
            }
            if ended.fetch_add(1, Ordering::Relaxed) + 1 == u64::from(RANKS) {
                over.store(true, Ordering::Relaxed);
            }
            while ended.load(Ordering::Relaxed) < u64::from(RANKS) {
                std::thread::yield_now();
            }
            // All are alive, and reached again.
            for rank in ranks::others(&rt) {
                let reached = (0..20).any(|_| rt.ping(rank, LIMIT).is_ok());
                assert!(reached, "{} does not reach {rank}: {:?}", rt.rank(), rt.ping(rank, LIMIT));
            }
            // Whoever leaves first may not cut off the answers of the others.
            ended.fetch_add(1, Ordering::Relaxed);
            while ended.load(Ordering::Relaxed) < 2 * u64::from(RANKS) {
                std::thread::yield_now();
            }
            rt.term(LIMIT).expect("term");
        });
    });
    let (done, failed) = (done.into_inner(), failed.into_inner());
    eprintln!("{done} exchanges were done, {failed} have failed");
    assert_eq!(done + failed, ROUNDS * u64::from(RANKS));
}
