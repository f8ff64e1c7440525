//! A rank of the tests over several hosts: `rounds NUMBER | while FILE`. Each round uses every kind
//! of operation with every other rank, and compares all that arrives with what was sent.
//!
//! With `while FILE` the rounds go on until FILE is gone. Rank 0 tells now and then how far they
//! are (`round N`); each rank tells at its end how many it did (`finished RANK N`).

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use gaspi::collectives::{Operation, allreduce_slice};
use gaspi::state::State;
use gaspi::{
    Config, GroupId, Init, Job, NotificationId, PendingInit, QueueId, Rank, Runtime, SegmentId,
    Timeout, Transfer,
};
use gaspi_tests::run_rank;

type Result<T> = std::result::Result<T, String>;

/// A guard: nothing takes longer, also while a network is away for as long as that is forgiven.
const GUARD: Timeout = Timeout::Millis(60_000);

/// The segment of all operations but for the last.
const SEGMENT: SegmentId = SegmentId(0);
/// Where its parts begin: what this rank sends, what its left neighbour and all others put there.
const OWN: u64 = 0;
const FROM_NEIGHBOUR: u64 = BLOCK;
const FROM_ALL: u64 = 2 * BLOCK;
const COPIED: u64 = 3 * BLOCK;
const MESSAGE: u64 = 4 * BLOCK;
const COUNTER: u64 = 5 * BLOCK;
const PRIZE: u64 = COUNTER + 8;
/// Large enough that it goes in several pieces whatever carries it.
const BLOCK: u64 = 1 << 20;
const MESSAGE_BYTES: u64 = 60_000;
/// Bytes for each rank in `FROM_ALL`.
const SLOT: u64 = 64;

/// Sizes of the block that goes to the neighbour, one after the other.
const SIZES: [u64; 6] = [8, 1, 4096, 100_000, BLOCK, 63];

fn main() -> ExitCode {
    run_rank("rounds NUMBER | while FILE", |arguments| match arguments {
        ["while", file] => Some(run(&End::Gone(PathBuf::from(file)))),
        [number] => Some(run(&End::After(number.parse().ok()?))),
        _ => None,
    })
}

/// When the rounds are over.
enum End {
    After(u64),
    Gone(PathBuf),
}

impl End {
    fn is_reached(&self, rounds: u64) -> bool {
        match self {
            End::After(number) => rounds >= *number,
            End::Gone(file) => !Path::exists(file),
        }
    }
}

/// Adds what was being done to an error.
trait During<T> {
    fn during(self, what: &str) -> Result<T>;
}

impl<T> During<T> for gaspi::Result<T> {
    fn during(self, what: &str) -> Result<T> {
        self.map_err(|error| format!("{what}: {error}"))
    }
}

fn run(end: &End) -> Result<()> {
    let job = Job::from_environment().during("environment")?;
    let mut joining = PendingInit::new(job, Config::default()).during("joining")?;
    let rt = joining.wait(GUARD).during("joining")?;
    rt.segment_create(SEGMENT, 6 * BLOCK, GroupId::ALL, GUARD, Init::Zeroed)
        .during("segment_create")?;
    println!("ready {} of {} on {}", rt.rank().0, rt.size(), rt.host());
    let mut told = Instant::now();
    let mut round = 0;
    loop {
        let over = rt.rank() == Rank(0) && end.is_reached(round);
        let over = allreduce(&rt, &[u64::from(over)], Operation::Max, GroupId::ALL)?;
        if over == [1] {
            break;
        }
        let mut one = Round { rt: &rt, number: round };
        one.run().map_err(|reason| format!("round {round}: {reason}"))?;
        round += 1;
        if rt.rank() == Rank(0) && told.elapsed() > Duration::from_millis(50) {
            println!("round {round}");
            told = Instant::now();
        }
    }
    if let Some(rank) = corrupt(&rt)? {
        return Err(format!("{rank} is CORRUPT after {round} rounds"));
    }
    rt.term(GUARD).during("term")?;
    println!("finished {} {round}", rt.rank().0);
    Ok(())
}

/// A rank that is not healthy.
fn corrupt(rt: &Runtime) -> Result<Option<Rank>> {
    for rank in (0..rt.size()).map(|rank| Rank(rank as u16)) {
        if rt.state(rank).during("state")? != State::Healthy {
            return Ok(Some(rank));
        }
    }
    Ok(None)
}

fn allreduce(rt: &Runtime, of: &[u64], operation: Operation, group: GroupId) -> Result<Vec<u64>> {
    let mut result = vec![0; of.len()];
    allreduce_slice(rt, of, &mut result, operation, group, GUARD).during("allreduce")?;
    Ok(result)
}

/// Bytes that no other rank and no other round sends.
fn pattern(rank: Rank, round: u64, size: u64) -> Vec<u8> {
    let first = u64::from(rank.0) * 31 + round * 7;
    (0..size).map(|index| ((first + index) % 251) as u8).collect()
}

/// One round of one rank.
struct Round<'a> {
    rt: &'a Runtime,
    number: u64,
}

impl Round<'_> {
    fn run(&mut self) -> Result<()> {
        self.ring()?;
        self.everybody_to_everybody()?;
        self.barrier()?;
        self.read_back()?;
        self.sums()?;
        self.messages()?;
        self.atomics()?;
        self.halves()?;
        self.segment_of_the_round()?;
        self.barrier()
    }

    fn me(&self) -> Rank {
        self.rt.rank()
    }

    /// The rank that is so many further on.
    fn further(&self, by: u32) -> Rank {
        Rank(((u32::from(self.me().0) + by) % self.rt.size()) as u16)
    }

    fn queue(&self, of: u32) -> QueueId {
        QueueId((of % 8) as u8)
    }

    fn barrier(&self) -> Result<()> {
        self.rt.barrier(GroupId::ALL, GUARD).during("barrier")
    }

    fn size(&self) -> u64 {
        SIZES[(self.number % SIZES.len() as u64) as usize]
    }

    /// Repeats a call that waits for any rank, and that no death ends, until it is done, the guard
    /// is over, or a rank is not healthy.
    fn while_all_live<T>(&self, call: impl Fn(Timeout) -> gaspi::Result<T>) -> Result<T> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            match call(Timeout::Millis(200)) {
                Err(error) if error.is_timeout() && Instant::now() < end => {
                    if let Some(rank) = corrupt(self.rt)? {
                        return Err(format!("{rank} is CORRUPT"));
                    }
                }
                other => return other.map_err(|error| error.to_string()),
            }
        }
    }

    fn compare(&self, what: &str, offset: u64, expected: &[u8]) -> Result<()> {
        let mut found = vec![0; expected.len()];
        self.rt.segment_read(SEGMENT, offset, &mut found).during("segment_read")?;
        match found.iter().zip(expected).position(|(found, expected)| found != expected) {
            None => Ok(()),
            Some(at) => Err(format!(
                "{what}: byte {at} of {} is {} instead of {}",
                expected.len(),
                found[at],
                expected[at]
            )),
        }
    }

    /// A block to the right neighbour with a notification, one from the left one.
    fn ring(&self) -> Result<()> {
        let (rt, size) = (self.rt, self.size());
        let id = NotificationId(rt.size());
        rt.segment_write(SEGMENT, OWN, &pattern(self.me(), self.number, BLOCK))
            .during("segment_write")?;
        let block = self.transfer(OWN, self.further(1), FROM_NEIGHBOUR, size);
        rt.write_notify(&block, id, self.number as u32 + 1, QueueId(0), GUARD)
            .during("write_notify")?;
        self.await_notification(id, self.number as u32 + 1)?;
        let left = self.further(rt.size() - 1);
        self.compare(&format!("from {left}"), FROM_NEIGHBOUR, &pattern(left, self.number, size))?;
        rt.wait(QueueId(0), GUARD).during("wait")
    }

    fn transfer(&self, local: u64, rank: Rank, remote: u64, size: u64) -> Transfer {
        Transfer {
            local: SEGMENT,
            local_offset: local,
            rank,
            remote: SEGMENT,
            remote_offset: remote,
            size,
        }
    }

    fn await_notification(&self, id: NotificationId, value: u32) -> Result<()> {
        let rt = self.rt;
        self.while_all_live(|timeout| rt.notify_waitsome(SEGMENT, id.0, 1, timeout))
            .map_err(|reason| format!("notify_waitsome {}: {reason}", id.0))?;
        let found = rt.notify_reset(SEGMENT, id).during("notify_reset")?;
        if found == value {
            return Ok(());
        }
        Err(format!("notification {} is {found} instead of {value}", id.0))
    }

    /// A few bytes to each rank, by a queue of its own.
    fn everybody_to_everybody(&self) -> Result<()> {
        let (rt, value) = (self.rt, self.number as u32 + 1);
        let slot = FROM_ALL + SLOT * u64::from(self.me().0);
        for by in 0..rt.size() {
            let (to, queue) = (self.further(by), self.queue(by));
            rt.write(&self.transfer(OWN, to, slot, SLOT), queue, GUARD).during("write")?;
            let id = NotificationId(u32::from(self.me().0));
            rt.notify(to, SEGMENT, id, value, queue, GUARD).during("notify")?;
        }
        for by in 0..rt.size() {
            let from = self.further(by);
            self.await_notification(NotificationId(u32::from(from.0)), value)?;
            let sent = pattern(from, self.number, SLOT);
            self.compare(&format!("from {from}"), FROM_ALL + SLOT * u64::from(from.0), &sent)?;
        }
        (0..rt.size().min(8)).try_for_each(|queue| {
            rt.wait(self.queue(queue), GUARD).during(&format!("wait for queue {queue}"))
        })
    }

    /// What each other rank sends in this round is read out of its memory.
    fn read_back(&self) -> Result<()> {
        for by in 1..self.rt.size() {
            let (from, size) = (self.further(by), self.size());
            let block = self.transfer(COPIED, from, OWN, size);
            self.rt.read(&block, QueueId(1), GUARD).during("read")?;
            self.rt.wait(QueueId(1), GUARD).during("wait for a read")?;
            self.compare(&format!("of {from}"), COPIED, &pattern(from, self.number, size))?;
        }
        Ok(())
    }

    fn sums(&self) -> Result<()> {
        let ranks = u64::from(self.rt.size());
        let of_ranks = ranks * (ranks - 1) / 2;
        for count in [1, 40, 255] {
            let mine = vec![u64::from(self.me().0) + self.number; count];
            let sums = allreduce(self.rt, &mine, Operation::Sum, GroupId::ALL)?;
            if sums != vec![of_ranks + ranks * self.number; count] {
                return Err(format!("sums of {count}: {sums:?}"));
            }
        }
        let least = allreduce(self.rt, &[u64::from(self.me().0)], Operation::Min, GroupId::ALL)?;
        if least == [0] { Ok(()) } else { Err(format!("the least rank is {least:?}")) }
    }

    /// A message to the right neighbour. Even ranks send first, so that nobody waits in a circle.
    fn messages(&self) -> Result<()> {
        if self.rt.size() == 1 {
            return Ok(());
        }
        let receive = || {
            let from = self
                .while_all_live(|timeout| {
                    self.rt.passive_receive(SEGMENT, MESSAGE, MESSAGE_BYTES, timeout)
                })
                .map_err(|reason| format!("passive_receive: {reason}"))?;
            let left = self.further(self.rt.size() - 1);
            if from != left {
                return Err(format!("a message from {from} instead of {left}"));
            }
            let sent = pattern(left, self.number, MESSAGE_BYTES);
            self.compare(&format!("message of {left}"), MESSAGE, &sent)
        };
        let is_first = self.me().0.is_multiple_of(2);
        if !is_first {
            receive()?;
        }
        self.rt
            .passive_send(SEGMENT, OWN, self.further(1), MESSAGE_BYTES, GUARD)
            .during("passive_send")?;
        if is_first { receive() } else { Ok(()) }
    }

    /// All add to one counter and compete for one prize; the target is another rank each round.
    fn atomics(&self) -> Result<()> {
        const TIMES: u64 = 10;
        let (rt, ranks) = (self.rt, u64::from(self.rt.size()));
        let target = Rank((self.number % ranks) as u16);
        for _ in 0..TIMES {
            rt.atomic_fetch_add(SEGMENT, COUNTER, target, 1, GUARD).during("atomic_fetch_add")?;
        }
        // Each rank is the target once in as many rounds as there are ranks.
        let turn = self.number / ranks;
        let old = rt
            .atomic_compare_swap(SEGMENT, PRIZE, target, turn, turn + 1, GUARD)
            .during("atomic_compare_swap")?;
        let winners = allreduce(rt, &[u64::from(old == turn)], Operation::Sum, GroupId::ALL)?;
        if winners != [1] {
            return Err(format!("{winners:?} ranks swapped the value of {target}"));
        }
        let sum =
            rt.atomic_fetch_add(SEGMENT, COUNTER, target, 0, GUARD).during("atomic_fetch_add")?;
        let expected = (turn + 1) * TIMES * ranks;
        if sum == expected {
            return Ok(());
        }
        Err(format!("the counter of {target} is {sum} instead of {expected}"))
    }

    /// Even and odd ranks form groups, which sum up without the others.
    fn halves(&self) -> Result<()> {
        let rt = self.rt;
        let group = rt.group_create().during("group_create")?;
        let mine = self.me().0 % 2;
        let mut expected = 0;
        for rank in (mine..rt.size() as u16).step_by(2) {
            rt.group_add(group, Rank(rank)).during("group_add")?;
            expected += u64::from(rank);
        }
        rt.group_commit(group, GUARD).during("group_commit")?;
        let sum = allreduce(rt, &[u64::from(self.me().0)], Operation::Sum, group)?;
        rt.barrier(group, GUARD).during("barrier of half of the ranks")?;
        rt.group_delete(group).during("group_delete")?;
        if sum == [expected] { Ok(()) } else { Err(format!("half of the ranks sum up to {sum:?}")) }
    }

    /// A segment that is made for one write, and deleted.
    fn segment_of_the_round(&self) -> Result<()> {
        let rt = self.rt;
        let segment = SegmentId(1 + (self.number % 200) as u8);
        rt.segment_create(segment, 4096, GroupId::ALL, GUARD, Init::Zeroed)
            .during("segment_create")?;
        let transfer =
            Transfer { remote: segment, ..self.transfer(OWN, self.further(1), 4096 - SLOT, SLOT) };
        rt.write_notify(&transfer, NotificationId(3), 1, QueueId(2), GUARD)
            .during("write_notify into a new segment")?;
        self.while_all_live(|timeout| rt.notify_waitsome(segment, 3, 1, timeout))
            .map_err(|reason| format!("notify_waitsome of a new segment: {reason}"))?;
        let left = self.further(rt.size() - 1);
        let mut found = vec![0; SLOT as usize];
        rt.segment_read(segment, 4096 - SLOT, &mut found).during("segment_read")?;
        rt.wait(QueueId(2), GUARD).during("wait")?;
        rt.segment_delete(segment).during("segment_delete")?;
        if found == pattern(left, self.number, SLOT) {
            return Ok(());
        }
        Err(format!("{left} wrote {found:?} into the segment of the round"))
    }
}
