//! A rank of the fault tests: `victim SCENARIO OPERATION VICTIM [FILE]`.
//!
//! - `die`: all ranks repeat OPERATION until rank VICTIM is dead, which the test sees to; it may be
//!   several ranks with commas between. The others print when they knew, check that what needs it
//!   fails and names it, and go on without it.
//! - `stop`: all ranks repeat OPERATION with short timeouts until FILE is gone, for a second
//!   without one; VICTIM is stopped and continued meanwhile. Nothing but timeouts may come of it.
//! - `init`: VICTIM is killed while all are joining. Each other rank is refused, by name, or joins
//!   and learns of the death.
//! - `wait`: all ranks join, say so and block in a barrier that never completes.
//! - `left`: all but VICTIM and the rank OPERATION leave the job, and live on until FILE is gone.
//!   Then VICTIM is killed, and OPERATION prints when it knew.
//! - `hear`: no rank connects to another one, but with OPERATION `connect` each to all, or calls
//!   anything; VICTIM dies, and the others print when they knew.
//! - `meet`: each rank joins, and prints what it waits for whenever that changes.
//! - `join`: OPERATION is the time in milliseconds that joining may take.
//!
//! With GASPI_TEST_NODES the ranks are spread over so many nodes.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use gaspi::collectives::{Operation, allreduce_slice};
use gaspi::configuration::Topology;
use gaspi::state::State;
use gaspi::{
    Config, Error, GroupId, Init, Job, NotificationId, PendingInit, QueueId, Rank, Runtime,
    SegmentId, Timeout, Transfer,
};
use gaspi_tests::{job_over_nodes, monotonic_us, run_rank};

type Result<T> = std::result::Result<T, String>;

const SEGMENT: SegmentId = SegmentId(0);
const QUEUE: QueueId = QueueId(0);
const SEGMENT_BYTES: u64 = 1 << 20;
/// Bytes that a write of the loop carries: enough that some writes are interrupted half way.
const WRITE_BYTES: u64 = 256 << 10;
const PASSIVE_BYTES: u64 = 4096;
/// A guard: nothing that has to succeed may take longer.
const GUARD: Timeout = Timeout::Millis(20_000);
/// Of calls that may well wait for the victim.
const SHORT: Timeout = Timeout::Millis(20);

fn main() -> ExitCode {
    let usage = "victim die|stop|init|wait|left|hear|meet|join OPERATION VICTIM [FILE]";
    run_rank(usage, |arguments| {
        let (scenario, operation, victim, file) = match arguments {
            [scenario, operation, victim] => (scenario, operation, victim, None),
            [scenario, operation, victim, file] => {
                (scenario, operation, victim, Some(Path::new(file)))
            }
            _ => return None,
        };
        let victims: Result<Vec<Rank>> = victim.split(',').map(rank_of).collect();
        Some(victims.and_then(|victims| play(scenario, operation, &victims, file)))
    })
}

fn play(scenario: &str, operation: &str, victims: &[Rank], file: Option<&Path>) -> Result<()> {
    let victim = victims[0];
    match scenario {
        "die" => die(operation, victims),
        "stop" => stop(operation, victim, file),
        "init" => init(victim),
        "wait" => wait(),
        "left" => left(operation, victim, file),
        "hear" => hear(operation, victim),
        "meet" => meet(),
        "join" => join(operation.parse().map_or(GUARD, Timeout::Millis)).map(drop),
        _ => Err(format!("there is no scenario {scenario:?}")),
    }
}

fn rank_of(text: &str) -> Result<Rank> {
    text.parse().map(Rank).map_err(|_| format!("{text:?} is no rank"))
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

fn join(timeout: Timeout) -> Result<Runtime> {
    join_with(Config::default(), timeout)
}

fn join_with(config: Config, timeout: Timeout) -> Result<Runtime> {
    let job = job_over_nodes().during("environment")?;
    let mut joining = PendingInit::new(job, config).during("joining")?;
    joining.wait(timeout).during("joining")
}

/// Joins and prepares the memory that the operations use.
fn prepare() -> Result<Runtime> {
    let rt = join(Timeout::Block)?;
    rt.segment_create(SEGMENT, SEGMENT_BYTES, GroupId::ALL, GUARD, Init::Zeroed)
        .during("segment_create")?;
    println!("ready {}", rt.rank().0);
    Ok(rt)
}

/// Whether the error is about the victim and says so.
fn names(error: &Error, victim: Rank) -> bool {
    // With the space, so that rank 1 is not found in rank 12.
    format!("{error} ").replace([',', ';', ':'], " ").contains(&format!("{victim} "))
}

/// Whether it is about one of them and says so.
fn names_one(error: &Error, victims: &[Rank]) -> bool {
    victims.iter().any(|victim| names(error, *victim))
}

fn neighbour(rt: &Runtime) -> Rank {
    Rank(((u32::from(rt.rank().0) + 1) % rt.size()) as u16)
}

/// One round of an operation. Pairs use short timeouts, because a neighbour may have gone on.
fn round(
    rt: &Runtime,
    operation: &str,
    number: u32,
    collective: Timeout,
    sums: &mut Sums,
) -> gaspi::Result<()> {
    let to = neighbour(rt);
    match operation {
        "barrier" => rt.barrier(GroupId::ALL, collective),
        "allreduce" => sums.run(rt, GroupId::ALL, 1, collective),
        "large-allreduce" => sums.run(rt, GroupId::ALL, 255, collective),
        "passive" => {
            // Even ranks send first; any receiver takes any sender.
            if (u32::from(rt.rank().0) + number).is_multiple_of(2) {
                rt.passive_send(SEGMENT, 0, to, PASSIVE_BYTES, SHORT)
            } else {
                let room = SEGMENT_BYTES / 2;
                rt.passive_receive(SEGMENT, room, PASSIVE_BYTES, SHORT).map(drop)
            }
        }
        "write" => {
            let transfer = Transfer {
                local: SEGMENT,
                local_offset: 0,
                rank: to,
                remote: SEGMENT,
                remote_offset: SEGMENT_BYTES / 2,
                size: WRITE_BYTES,
            };
            let id = NotificationId(u32::from(rt.rank().0));
            rt.write_notify(&transfer, id, number | 1, QUEUE, SHORT)?;
            rt.wait(QUEUE, SHORT)?;
            if let Some(first) = rt.notify_waitsome(SEGMENT, 0, rt.size(), SHORT)? {
                rt.notify_reset(SEGMENT, first)?;
            }
            Ok(())
        }
        "atomic" => rt.atomic_fetch_add(SEGMENT, 8, to, 1, SHORT).map(drop),
        "segment" => {
            let id = SegmentId(1 + (number % 100) as u8);
            let made = rt.segment_create(id, 65536, GroupId::ALL, collective, Init::Zeroed);
            if made.is_ok() {
                rt.segment_delete(id)?;
            }
            made
        }
        "ping" => rt.ping(to, SHORT),
        "commit" => {
            let group = rt.group_create()?;
            for rank in 0..rt.size() {
                rt.group_add(group, Rank(rank as u16))?;
            }
            let committed = rt.group_commit(group, collective);
            rt.group_delete(group)?;
            committed
        }
        "idle" => {
            std::thread::yield_now();
            Ok(())
        }
        _ => Err(Error::Environment { reason: format!("there is no operation {operation:?}") }),
    }
}

/// The buffers of an all-reduce. They live as long as the call is repeated: one that continues
/// after a timeout has to come with the same arguments.
struct Sums {
    ones: Vec<i64>,
    sums: Vec<i64>,
}

impl Sums {
    fn new() -> Sums {
        Sums { ones: vec![1; 255], sums: vec![0; 255] }
    }

    /// Adds `count` ones over the group and checks the sums.
    fn run(
        &mut self,
        rt: &Runtime,
        group: GroupId,
        count: usize,
        timeout: Timeout,
    ) -> gaspi::Result<()> {
        let members = i64::from(rt.group_size(group)?);
        let (ones, sums) = (&self.ones[..count], &mut self.sums[..count]);
        allreduce_slice(rt, ones, sums, Operation::Sum, group, timeout)?;
        assert!(sums.iter().all(|sum| *sum == members), "wrong sums {sums:?}");
        Ok(())
    }
}

fn die(operation: &str, victims: &[Rank]) -> Result<()> {
    let rt = prepare()?;
    let me = rt.rank();
    // Made first, so that its id is not one that the loop uses: a survivor that is still in the
    // loop would commit another group by the same id.
    let survivors = rt.group_create().during("group_create")?;
    let mut sums = Sums::new();
    let mut number = 0;
    let knew = loop {
        if is_any_corrupt(&rt, victims)? {
            break monotonic_us();
        }
        match round(&rt, operation, number, Timeout::Block, &mut sums) {
            Ok(()) => {}
            Err(error) if error.is_timeout() => {}
            // Survivors that already know do not take part in the old group any more.
            Err(error) if names_one(&error, victims) => break monotonic_us(),
            Err(error) => return Err(format!("round {number} of {operation}: {error}")),
        }
        number += 1;
    };
    if victims.contains(&me) {
        return Err("the victim thinks that it is dead".into());
    }
    println!("knows {} {knew}", me.0);
    for victim in victims {
        await_corrupt(&rt, *victim)?;
        needs_the_dead(&rt, operation, *victim, victims)?;
    }
    go_on(&rt, survivors, victims)?;
    rt.term(GUARD).during("term")?;
    println!("survived {}", me.0);
    Ok(())
}

fn is_corrupt(rt: &Runtime, victim: Rank) -> Result<bool> {
    Ok(rt.state(victim).during("state")? == State::Corrupt)
}

fn is_any_corrupt(rt: &Runtime, victims: &[Rank]) -> Result<bool> {
    for victim in victims {
        if is_corrupt(rt, *victim)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn await_corrupt(rt: &Runtime, victim: Rank) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(10);
    while !is_corrupt(rt, victim)? {
        if Instant::now() > end {
            return Err(format!("{victim} is not CORRUPT 10 s after a call said that it died"));
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// Everything that needs the dead rank fails at once and names it, without any limit of time. What
/// needs all names one of `victims`.
fn needs_the_dead(rt: &Runtime, operation: &str, victim: Rank, victims: &[Rank]) -> Result<()> {
    let transfer = Transfer {
        local: SEGMENT,
        local_offset: 0,
        rank: victim,
        remote: SEGMENT,
        remote_offset: 0,
        size: 8,
    };
    // What the victim still took part in may succeed, but not for longer than it takes to know.
    let end = Instant::now() + Duration::from_secs(1);
    let one_of = |victims: &[Rank], what: &str, call: &mut dyn FnMut() -> gaspi::Result<()>| {
        loop {
            match call() {
                Err(error) if names_one(&error, victims) => return Ok(()),
                Err(error) => return Err(format!("{what} does not name {victim}: {error}")),
                Ok(()) if Instant::now() > end => {
                    return Err(format!("{what} succeeds although {victim} is dead"));
                }
                Ok(()) => {}
            }
        }
    };
    // What was given up above has to be given up for good before another collective may run.
    let collective = if matches!(operation, "allreduce" | "large-allreduce" | "segment") {
        operation
    } else {
        "barrier"
    };
    let mut sums = Sums::new();
    let mut call = || round(rt, collective, 0, Timeout::Block, &mut sums);
    one_of(victims, "a collective", &mut call)?;
    let expect =
        |what: &str, call: &mut dyn FnMut() -> gaspi::Result<()>| one_of(&[victim], what, call);
    expect("ping", &mut || rt.ping(victim, Timeout::Block))?;
    expect("atomic", &mut || rt.atomic_fetch_add(SEGMENT, 0, victim, 1, Timeout::Block).map(drop))?;
    expect("passive_send", &mut || rt.passive_send(SEGMENT, 0, victim, 64, Timeout::Block))?;
    expect("write and wait", &mut || {
        rt.write(&transfer, QUEUE, Timeout::Block)?;
        rt.wait(QUEUE, Timeout::Block)
    })?;
    rt.queue_purge(QUEUE, GUARD).during("queue_purge")
}

/// The survivors form a group, work in it, and use each other's memory.
fn go_on(rt: &Runtime, group: GroupId, victims: &[Rank]) -> Result<()> {
    let mut survivors = Vec::new();
    let all = (0..rt.size()).map(|rank| Rank(rank as u16));
    for rank in all.filter(|rank| !victims.contains(rank)) {
        rt.group_add(group, rank).during("group_add")?;
        survivors.push(rank);
    }
    rt.group_commit(group, GUARD).during("group_commit of the survivors")?;
    rt.barrier(group, GUARD).during("barrier of the survivors")?;
    let mut sums = Sums::new();
    for _ in 0..10 {
        sums.run(rt, group, 100, GUARD).during("allreduce of the survivors")?;
    }
    let segment = SegmentId(200);
    rt.segment_create(segment, 4096, group, GUARD, Init::Zeroed)
        .during("segment_create of the survivors")?;
    let me = survivors.iter().position(|rank| *rank == rt.rank()).unwrap_or(0);
    let transfer = Transfer {
        local: segment,
        local_offset: 0,
        rank: survivors[(me + 1) % survivors.len()],
        remote: segment,
        remote_offset: 64,
        size: 64,
    };
    rt.segment_write(segment, 0, &[me as u8 + 1; 64]).during("segment_write")?;
    rt.write_notify(&transfer, NotificationId(3), 1, QUEUE, GUARD).during("write_notify")?;
    rt.wait(QUEUE, GUARD).during("wait")?;
    rt.notify_waitsome(segment, 3, 1, GUARD).during("notify_waitsome")?;
    let mut bytes = [0; 64];
    rt.segment_read(segment, 64, &mut bytes).during("segment_read")?;
    let before = (me + survivors.len() - 1) % survivors.len();
    if bytes != [before as u8 + 1; 64] {
        return Err(format!("survivor {before} wrote {bytes:?}"));
    }
    rt.barrier(group, GUARD).during("last barrier of the survivors")
}

fn stop(operation: &str, victim: Rank, file: Option<&Path>) -> Result<()> {
    let rt = prepare()?;
    let start = Instant::now();
    let is_over = || file.map_or(start.elapsed() > Duration::from_secs(1), |file| !file.exists());
    let mut sums = Sums::new();
    let mut number = 0;
    loop {
        repeat(|| round(&rt, operation, number, SHORT, &mut sums), is_pairwise(operation))
            .during(&format!("round {number} of {operation}"))?;
        // Rank 0 decides, all end with the same round.
        let over = [u32::from(rt.rank() == Rank(0) && is_over())];
        let mut all_over = [0];
        repeat(
            || allreduce_slice(&rt, &over, &mut all_over, Operation::Max, GroupId::ALL, SHORT),
            false,
        )
        .during(&format!("agreeing after round {number} of {operation}"))?;
        number += 1;
        if all_over == [1] {
            break;
        }
    }
    if is_corrupt(&rt, victim)? {
        return Err(format!("{victim} was stopped for a while and counts as CORRUPT"));
    }
    rt.barrier(GroupId::ALL, GUARD).during("barrier at the end")?;
    rt.term(GUARD).during("term")?;
    println!("finished {} after {number} rounds", rt.rank().0);
    Ok(())
}

/// Whether a timeout ends a round, because a partner may be in another one.
fn is_pairwise(operation: &str) -> bool {
    matches!(operation, "passive" | "write" | "ping" | "atomic")
}

/// Calls again after each timeout.
fn repeat(mut call: impl FnMut() -> gaspi::Result<()>, once: bool) -> gaspi::Result<()> {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match call() {
            Err(error) if error.is_timeout() && once => return Ok(()),
            Err(error) if error.is_timeout() && Instant::now() < end => {}
            other => return other,
        }
    }
}

fn init(victim: Rank) -> Result<()> {
    let name = std::env::var("GASPI_RANK").unwrap_or_default();
    let rt = match join(Timeout::Block) {
        Ok(rt) => rt,
        // Or of one that has given up its own start because of the victim, and has ended since.
        Err(reason)
            if reason.contains(&victim.to_string()) || reason.contains("died while joining") =>
        {
            println!("refused {name}: {reason}");
            return Ok(());
        }
        Err(reason) => return Err(format!("the start failed without naming {victim}: {reason}")),
    };
    await_corrupt(&rt, victim)?;
    rt.term(GUARD).during("term")?;
    println!("joined {name}");
    Ok(())
}

fn wait() -> Result<()> {
    let rt = prepare()?;
    if rt.rank() == Rank(0) {
        // The others wait for this rank, which waits for a message that is never sent.
        rt.passive_receive(SEGMENT, 0, 64, Timeout::Block).during("passive_receive")?;
    }
    rt.barrier(GroupId::ALL, Timeout::Block).during("barrier")
}

/// Joins, and tells what it waits for.
fn meet() -> Result<()> {
    let job = Job::from_environment().during("environment")?;
    let mut joining = PendingInit::new(job, Config::default()).during("joining")?;
    let mut told = String::new();
    loop {
        match joining.wait(SHORT) {
            Ok(_) => return Ok(()),
            Err(error) if error.is_timeout() => {
                let now = error.to_string();
                if now != told {
                    println!("waits: {now}");
                    told = now;
                }
            }
            Err(error) => return Err(format!("joining: {error}")),
        }
    }
}

/// Of a job that all but two have left, one dies.
fn left(survivor: &str, victim: Rank, file: Option<&Path>) -> Result<()> {
    let survivor = rank_of(survivor)?;
    let rt = join(Timeout::Block)?;
    let me = rt.rank();
    let both = rt.group_create().during("group_create")?;
    if me != victim && me != survivor {
        rt.term(GUARD).during("term")?;
        println!("ready {}", me.0);
        while file.is_some_and(Path::exists) {
            std::thread::sleep(Duration::from_millis(10));
        }
        return Ok(());
    }
    if me == victim {
        rt.segment_alloc(SEGMENT, SEGMENT_BYTES, Init::Zeroed).during("segment_alloc")?;
    }
    for rank in [victim, survivor] {
        rt.group_add(both, rank).during("group_add")?;
    }
    rt.group_commit(both, GUARD).during("group_commit")?;
    println!("ready {}", me.0);
    if me == victim {
        rt.passive_receive(SEGMENT, 0, 64, Timeout::Block).during("passive_receive")?;
        return Err("the victim lives".into());
    }
    match rt.barrier(both, Timeout::Block) {
        Err(error) if names(&error, victim) => println!("knows {} {}", me.0, monotonic_us()),
        other => return Err(format!("the barrier: {other:?}")),
    }
    rt.term(GUARD).during("term")?;
    println!("survived {}", me.0);
    Ok(())
}

/// One dies of ranks that are not connected with each other.
fn hear(first: &str, victim: Rank) -> Result<()> {
    let config = Config { topology: Topology::Dynamic, ..Config::default() };
    let rt = join_with(config, Timeout::Block)?;
    let me = rt.rank();
    for peer in (0..rt.size()).map(|peer| Rank(peer as u16)).filter(|_| first == "connect") {
        rt.connect(peer, GUARD).during("connect")?;
    }
    println!("ready {}", me.0);
    while !is_corrupt(&rt, victim)? {
        std::thread::yield_now();
    }
    if me == victim {
        return Err("the victim thinks that it is dead".into());
    }
    println!("knows {} {}", me.0, monotonic_us());
    match rt.ping(victim, Timeout::Block) {
        Err(error) if names(&error, victim) => {}
        other => return Err(format!("ping: {other:?}")),
    }
    rt.term(GUARD).during("term")?;
    println!("survived {}", me.0);
    Ok(())
}
