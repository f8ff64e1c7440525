//! Operations of every kind with every other rank, by a seed, whose outcome is known exactly.
//!
//! What fails is done again until it succeeds, so that in the end everything has been done: a write
//! leaves what was written last, a notification its last value, and counters, messages and
//! collectives tell what came twice.

use crate::network::Numbers;
use crate::ranks::{LIMIT, others};
use gaspi_core::*;
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const S0: SegmentId = SegmentId(0);
/// Registered and deleted while all else goes on.
const S1: SegmentId = SegmentId(1);
const WORD: u64 = 8;

// The parts of a segment, in bytes.
/// What others add to.
const COUNTER: u64 = 0;
/// What a passive message is sent from, and received into.
const OUTGOING: u64 = 4096;
const INCOMING: u64 = OUTGOING + MESSAGE_MAX;
const MESSAGE_MAX: u64 = 65536;
/// What never changes.
const CONSTANT: u64 = INCOMING + MESSAGE_MAX;
const CONSTANT_BYTES: u64 = 1 << 20;
/// What was read.
const LANDING: u64 = CONSTANT + CONSTANT_BYTES;
/// What each rank writes to the others, and what each has written here.
const SOURCES: u64 = LANDING + CONSTANT_BYTES;
/// Slots of one pair of ranks: a small one, behind it a large one.
const SMALL: u64 = 64;
const LARGE: u64 = 200_000;
const PAIR: u64 = 1 << 18;

/// Chunks between two steps, and what a rank has done before the second one.
const CHUNKS: usize = 8;
const CHUNKS_AND_STEP: usize = CHUNKS + 1;

/// How many ranks a segment has room for.
const RANKS_MAX: u64 = 8;
const TARGETS: u64 = SOURCES + RANKS_MAX * PAIR;
const SIZE: u64 = TARGETS + RANKS_MAX * PAIR;

fn word(seed: u64, index: u64) -> u64 {
    (seed << 32 ^ index).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// Words that tell what they are; the first is the seed itself.
fn pattern(seed: u64, first: u64, count: u64) -> Vec<u8> {
    let value = |index| if index == 0 { seed } else { word(seed, index) };
    (first..first + count).flat_map(|index| value(index).to_ne_bytes()).collect()
}

/// What all ranks of a test know of each other.
#[derive(Debug)]
pub(crate) struct Ledger {
    ranks: u64,
    /// Connections are cut, so that operations may fail.
    pub(crate) may_fail: bool,
    /// Atomic additions that were reported as done, and that were not.
    added: AtomicU64,
    unsure: AtomicU64,
    /// Values that additions have found, by rank.
    found: Mutex<HashSet<(Rank, u64)>>,
    /// Messages that were reported as received.
    sent: Mutex<HashSet<u64>>,
    received: Mutex<HashSet<u64>>,
    pub(crate) failures: AtomicU64,
}

impl Ledger {
    pub(crate) fn new(ranks: u32, may_fail: bool) -> Ledger {
        Ledger {
            ranks: ranks.into(),
            may_fail,
            added: AtomicU64::new(0),
            unsure: AtomicU64::new(0),
            found: Mutex::default(),
            sent: Mutex::default(),
            received: Mutex::default(),
            failures: AtomicU64::new(0),
        }
    }

    fn count_unsure(&self) {
        self.unsure.fetch_add(1, Ordering::Relaxed);
    }

    /// What was reported as done was done once, and nothing came twice. After all ranks are
    /// through.
    pub(crate) fn check(&self, counters: u64) {
        self.check_failures();
        let (added, unsure) =
            (self.added.load(Ordering::Relaxed), self.unsure.load(Ordering::Relaxed));
        assert!(
            (added..=added + unsure).contains(&counters),
            "{added} additions were reported as done, {unsure} as failed, and {counters} were"
        );
        let (sent, received) =
            (self.sent.lock().expect("sent"), self.received.lock().expect("received"));
        let lost: Vec<_> = sent.difference(&received).collect();
        assert!(lost.is_empty(), "messages were reported as received, and were not: {lost:x?}");
    }

    /// Nothing has failed if nothing was to.
    pub(crate) fn check_failures(&self) {
        let failures = self.failures.load(Ordering::Relaxed);
        assert!(self.may_fail || failures == 0, "{failures} operations failed");
    }
}

/// One rank's part.
pub(crate) struct Traffic<'a> {
    rt: &'a Runtime,
    ledger: &'a Ledger,
    numbers: Numbers,
    /// By rank: the last value that was written to it, and the last that was done.
    last: Vec<u64>,
    messages: u64,
    /// Who may die.
    pub(crate) victim: Option<Rank>,
}

impl<'a> Traffic<'a> {
    pub(crate) fn new(rt: &'a Runtime, ledger: &'a Ledger, seed: u64) -> Traffic<'a> {
        assert!(ledger.ranks <= RANKS_MAX);
        let numbers = Numbers::new(seed.wrapping_mul(1000) + u64::from(rt.rank().0));
        Traffic {
            rt,
            ledger,
            numbers,
            last: vec![0; ledger.ranks as usize],
            messages: 0,
            victim: None,
        }
    }

    /// Makes the segment of all operations.
    pub(crate) fn prepare(&self) {
        let constant = pattern(self.rt.rank().0.into(), 1, CONSTANT_BYTES / WORD);
        // What fails on one rank fails on all.
        while let Err(error) = self.rt.segment_create(S0, SIZE, GroupId::ALL, LIMIT, Init::Zeroed) {
            assert!(self.ledger.may_fail && !error.is_timeout(), "{}: {error}", self.rt.rank());
        }
        self.rt.segment_write(S0, CONSTANT, &constant).expect("inside");
        self.rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
    }

    /// Does something until it is done; `None` if it needs somebody who has died. A failure names
    /// whom it concerns, and is no timeout.
    fn insist<T>(
        &mut self,
        what: &str,
        to: Rank,
        mut attempt: impl FnMut(&mut Self) -> Result<T>,
    ) -> Option<T> {
        for _ in 0..1000 {
            let error = match attempt(self) {
                Ok(value) => return Some(value),
                Err(error) => error,
            };
            let (own, text) = (self.rt.rank(), error.to_string());
            assert!(!error.is_timeout(), "{own}: {what} of {to} ended by its timeout: {text}");
            assert!(
                text.contains(&to.to_string()),
                "{own}: {what} of {to} does not name it: {text}"
            );
            if self.victim == Some(to) {
                return None;
            }
            assert!(self.ledger.may_fail, "{own}: {what} of {to} failed: {text}");
            let gone = ["died", "left", "vanished"].iter().any(|word| text.contains(word));
            assert!(!gone, "{own}: {what} of {to}, which lives: {text}");
            self.ledger.failures.fetch_add(1, Ordering::Relaxed);
        }
        panic!("{}: {what} of {to} fails and fails", self.rt.rank());
    }

    /// Waits for a queue, at first not for long: that a call ends by its timeout loses nothing.
    fn wait(&mut self, queue: QueueId) -> Result<()> {
        if self.numbers.once_in(3) {
            match self.rt.wait(queue, Timeout::Millis(1)) {
                Err(error) if error.is_timeout() => {}
                outcome => return self.purged(queue, outcome),
            }
        }
        let outcome = self.rt.wait(queue, LIMIT);
        self.purged(queue, outcome)
    }

    fn purged(&self, queue: QueueId, outcome: Result<()>) -> Result<()> {
        outcome.inspect_err(|_| self.rt.queue_purge(queue, LIMIT).expect("purge"))
    }

    /// Calls of which all is known when they return, with each other rank that lives.
    pub(crate) fn calls(&mut self, rounds: u64) {
        for to in (0..rounds).flat_map(|_| others(self.rt)) {
            let queue = QueueId(self.numbers.below(3) as u8);
            match self.numbers.below(5) {
                _ if self.rt.state(to) == Ok(State::Corrupt) => {}
                0 => self.write(to, queue, SMALL),
                1 => self.write(to, queue, LARGE),
                2 => self.read(to, queue),
                3 => self.add(to),
                _ => self.ping_or_register(to),
            }
        }
    }

    /// One operation with each other rank.
    pub(crate) fn round(&mut self) {
        for to in others(self.rt) {
            let queue = QueueId(self.numbers.below(3) as u8);
            match self.numbers.below(10) {
                0..=2 => self.write(to, queue, SMALL),
                3 => self.write(to, queue, LARGE),
                4 | 5 => self.read(to, queue),
                6 | 7 => self.add(to),
                8 => self.send(to),
                _ => self.ping_or_register(to),
            }
        }
    }

    /// Writes to the part of `to` that this rank has there, and sets its notification there.
    fn write(&mut self, to: Rank, queue: QueueId, size: u64) {
        let (own, value) = (self.rt.rank(), self.last[to.index()] + 1);
        self.last[to.index()] = value;
        let slot = if size == SMALL { 0 } else { SMALL };
        let local_offset = SOURCES + u64::from(to.0) * PAIR + slot;
        let remote_offset = TARGETS + u64::from(own.0) * PAIR + slot;
        self.rt.segment_write(S0, local_offset, &pattern(value, 0, size / WORD)).expect("inside");
        let t = Transfer { local: S0, local_offset, rank: to, remote: S0, remote_offset, size };
        let id = NotificationId(own.0.into());
        self.insist("a write", to, |traffic| {
            traffic.rt.write_notify(&t, id, value as u32, queue, LIMIT)?;
            traffic.wait(queue)
        });
    }

    /// Reads a part of what never changes.
    fn read(&mut self, to: Rank, queue: QueueId) {
        let words = CONSTANT_BYTES / WORD;
        let first = self.numbers.below(words - 1);
        let longest = if self.numbers.once_in(4) { words } else { 16 };
        let count = 1 + self.numbers.below(longest.min(words - first));
        let offset = first * WORD;
        let t = Transfer {
            local: S0,
            local_offset: LANDING + offset,
            rank: to,
            remote: S0,
            remote_offset: CONSTANT + offset,
            size: count * WORD,
        };
        let expected = pattern(to.0.into(), first + 1, count);
        self.rt.segment_write(S0, t.local_offset, &vec![0; expected.len()]).expect("inside");
        let done = self.insist("a read", to, |traffic| {
            traffic.rt.read(&t, queue, LIMIT)?;
            traffic.wait(queue)
        });
        if done.is_none() {
            return;
        }
        let mut read = vec![0; expected.len()];
        self.rt.segment_read(S0, t.local_offset, &mut read).expect("inside");
        assert!(read == expected, "{}: what was read from {to} is wrong", self.rt.rank());
    }

    fn add(&mut self, to: Rank) {
        let ledger = self.ledger;
        let old = self.insist("an addition", to, |traffic| {
            let added = traffic.rt.atomic_fetch_add(S0, COUNTER, to, 1, LIMIT);
            added.inspect_err(|_| ledger.count_unsure())
        });
        let Some(old) = old else { return };
        ledger.added.fetch_add(1, Ordering::Relaxed);
        let fresh = ledger.found.lock().expect("found").insert((to, old));
        assert!(fresh, "{}: two additions have found {old} at {to}", self.rt.rank());
    }

    /// Sends a passive message; each attempt is another message.
    fn send(&mut self, to: Rank) {
        let own = u64::from(self.rt.rank().0);
        let most = if self.numbers.once_in(2) { 8000 } else { 4 };
        let words = 1 + self.numbers.below(most);
        let message = self.insist("a message", to, |traffic| {
            traffic.messages += 1;
            let message = own << 24 | traffic.messages;
            traffic.rt.segment_write(S0, OUTGOING, &pattern(message, 0, words))?;
            traffic.rt.passive_send(S0, OUTGOING, to, words * WORD, LIMIT).map(|()| message)
        });
        self.ledger.sent.lock().expect("sent").extend(message);
    }

    fn ping_or_register(&mut self, to: Rank) {
        if self.numbers.once_in(2) {
            self.insist("a ping", to, |traffic| traffic.rt.ping(to, LIMIT));
            return;
        }
        self.rt.segment_alloc(S1, 64, Init::Zeroed).expect("alloc");
        self.insist("a registration", to, |traffic| traffic.rt.segment_register(S1, to, LIMIT));
        self.rt.segment_delete(S1).expect("delete");
    }

    /// What all ranks do together: they agree on a sum, in `group`.
    pub(crate) fn agree(&mut self, group: GroupId, value: u64) {
        let describe = |signature: u64| format!("an agreement {signature}");
        let signature = CallKind::Allreduce.signature(value);
        let key = CallKey { kind: CallKind::Allreduce, arguments: value, signature, describe };
        let own = value + u64::from(self.rt.rank().0);
        let (sum, expected) = loop {
            let mut call = self.rt.group_call(group, key).expect("call");
            call.arrive(&[own]);
            let short = self.numbers.once_in(2);
            let limit = if short { Timeout::Millis(2) } else { LIMIT };
            match call.await_all(limit.deadline()) {
                // A call that has timed out is continued.
                Err(error) if short && error.is_timeout() => continue,
                outcome => outcome.expect("all come"),
            }
            let step = call.step();
            let sum = (0..call.ranks().len()).map(|member| call.payload(member, step)[0]);
            let sum: u64 = sum.sum();
            let expected: u64 = call.ranks().iter().map(|rank| value + u64::from(rank.0)).sum();
            call.finish();
            break (sum, expected);
        };
        assert_eq!(sum, expected, "{}: a wrong sum", self.rt.rank());
    }

    /// Each sends the next one chunks between two steps; whoever waits gives up now and then.
    pub(crate) fn send_along(&mut self, group: GroupId, value: u64) {
        let describe = |signature: u64| format!("a chain {signature}");
        let signature = CallKind::Allreduce.signature(value);
        let key = CallKey { kind: CallKind::Allreduce, arguments: value, signature, describe };
        let chunk = |of: usize, number: usize| vec![value + of as u64; 1 + 5 * number];
        // How far this rank has come: two steps, and the chunks of the one before it.
        let mut done = 0;
        loop {
            let mut call = self.rt.group_call(group, key).expect("call");
            let (me, size) = (call.me(), call.ranks().len());
            let before = (me + size - 1) % size;
            let short = self.numbers.once_in(2);
            let limit = if short { Timeout::Millis(2) } else { LIMIT }.deadline();
            let outcome = match done {
                0 | CHUNKS_AND_STEP => {
                    call.set_number(u64::from(done > 0));
                    call.arrive(&[]);
                    call.await_all(limit)
                }
                number => call.await_chunk(before, number - 1, limit),
            };
            match outcome {
                Err(error) if short && error.is_timeout() => continue,
                outcome => outcome.expect("all come"),
            }
            match done {
                0 => (0..CHUNKS).for_each(|i| call.send_chunk((me + 1) % size, i, chunk(me, i))),
                CHUNKS_AND_STEP => {
                    call.end_chunks();
                    return call.finish();
                }
                number => {
                    let found = call.take_chunk(before, number - 1);
                    assert_eq!(found, Some(chunk(before, number - 1)), "{}", self.rt.rank());
                }
            }
            done += 1;
        }
    }

    /// A group of all ranks comes and goes.
    pub(crate) fn regroup(&mut self, value: u64) {
        let group = self.rt.group_create().expect("create");
        for rank in 0..self.rt.size() {
            self.rt.group_add(group, Rank(rank as u16)).expect("add");
        }
        self.rt.group_commit(group, LIMIT).expect("commit");
        self.agree(group, value);
        self.rt.group_delete(group).expect("delete");
    }

    /// What this rank has written to `to`, as it has to be found there in the end.
    pub(crate) fn written(&self, to: Rank) -> u64 {
        self.last[to.index()]
    }

    /// What has been added to this rank's counter.
    pub(crate) fn counter(&self) -> u64 {
        let mut word = [0; 8];
        self.rt.segment_read(S0, COUNTER, &mut word).expect("inside");
        u64::from_ne_bytes(word)
    }

    /// Checks what `from` has written here, which wrote `last` last.
    pub(crate) fn check(&self, from: Rank, last: u64) {
        let own = self.rt.rank();
        let part = TARGETS + u64::from(from.0) * PAIR;
        let mut newest = 0;
        for (offset, size) in [(part, SMALL), (part + SMALL, LARGE)] {
            let mut found = vec![0; size as usize];
            self.rt.segment_read(S0, offset, &mut found).expect("inside");
            let value = u64::from_ne_bytes(*found.first_chunk().expect("a word"));
            newest = newest.max(value);
            assert!(
                value == 0 || found == pattern(value, 0, size / WORD),
                "{own}: torn, of {from}"
            );
        }
        assert_eq!(newest, last, "{own}: the last that {from} wrote is not here");
        let id = NotificationId(from.0.into());
        let value = u64::from(self.rt.notify_reset(S0, id).expect("reset"));
        assert_eq!(value, last, "{own}: not the last notification of {from}");
    }
}

/// Takes passive messages until `over` says that there are no more.
pub(crate) fn receive(rt: &Runtime, ledger: &Ledger, over: impl Fn() -> bool) {
    loop {
        let ending = over();
        let from = match rt.passive_receive(S0, INCOMING, MESSAGE_MAX, Timeout::Millis(20)) {
            Ok(from) => from,
            Err(error) if error.is_timeout() && ending => return,
            Err(error) => {
                assert!(error.is_timeout(), "{}: receiving failed: {error}", rt.rank());
                continue;
            }
        };
        let mut word = [0; 8];
        rt.segment_read(S0, INCOMING, &mut word).expect("inside");
        let message = u64::from_ne_bytes(word);
        assert_eq!(message >> 24, from.0.into(), "{}: a message of somebody else", rt.rank());
        let fresh = ledger.received.lock().expect("received").insert(message);
        assert!(fresh, "{}: message {message:x} came twice", rt.rank());
    }
}
