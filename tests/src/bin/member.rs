//! A rank of the fault tests of collective operations: `member SCENARIO SEED VICTIM [FILE]`.
//!
//! All ranks draw the same operations from SEED: kind, algorithm, size, root, memory, blocking or
//! not, and check all results.
//!
//! - `die`: until rank VICTIM is dead, which the test sees to. The others print when they knew, by
//!   an error that names it, and go on in a group that it never was in and in a new one.
//! - `stop`: with short timeouts until FILE is gone. VICTIM is stopped and continued meanwhile.
//!   Nothing but timeouts may come of it.
//!
//! With GASPI_TEST_NODES=pairs two and two ranks share memory, and reach the others by TCP. A
//! number says over how many nodes the ranks are spread.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gaspi::collectives::{
    Algorithm, Collective, Combination, DataType, Operation, Prepared, Reducer, Request, Started,
    TypedRequest, prepare, run, start_raw,
};
use gaspi::{Config, Error, GroupId, Init, PendingInit, Rank, Runtime, SegmentId, Timeout};
use gaspi_tests::{Seed, job_over_nodes, monotonic_us, run_rank};

type Result<T> = std::result::Result<T, String>;

/// A guard: nothing that has to succeed may take longer.
const GUARD: Timeout = Timeout::Millis(30_000);
/// Of calls that may well wait for the victim.
const SHORT: Timeout = Timeout::Millis(20);
const SEGMENT: SegmentId = SegmentId(0);
/// Elements of a buffer: several messages, more than fit between two ranks at once.
const LARGE: usize = 300_000;
/// Operations after the death, in each group.
const AFTERWARDS: u32 = 6;

fn main() -> ExitCode {
    run_rank("member die SEED VICTIM | stop SEED VICTIM FILE", |arguments| match arguments {
        ["die", seed, victim] => Some(die(seed.parse().ok()?, Rank(victim.parse().ok()?))),
        ["stop", seed, _, file] => Some(stop(seed.parse().ok()?, Path::new(file))),
        _ => None,
    })
}

fn join() -> gaspi::Result<Runtime> {
    PendingInit::new(job_over_nodes()?, Config::default())?.wait(Timeout::Block)
}

/// Element `index` of what a rank contributes.
fn value(rank: Rank, index: usize) -> u64 {
    u64::from(rank.0) * 1000 + index as u64 % 97
}

/// Whether the error is about the victim and says so.
fn names(error: &Error, victim: Rank) -> bool {
    matches!(error, Error::RankDied { rank, .. } if *rank == victim)
}

/// How an operation is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Blocking,
    Started,
    Tested,
    Background,
}

/// One operation, as all members ask for it.
#[derive(Clone, Copy, Debug)]
struct Case {
    collective: Collective,
    algorithm: Option<Algorithm>,
    /// Elements of the whole, or of each block.
    count: usize,
    root: Rank,
    /// By rank, whether the buffers are in a segment: bit 0 of even ranks, bit 1 of odd ones.
    segment: u64,
    way: Way,
    /// Combined by a function of the program.
    user: bool,
}

impl Case {
    /// The next one: the same on all members.
    fn draw(dice: &mut Seed, members: &[Rank]) -> Case {
        let pick = |dice: &mut Seed, limit: usize| dice.below(limit as u64) as usize;
        let collective = Collective::ALL[pick(dice, Collective::ALL.len())];
        let serving: Vec<Algorithm> =
            Algorithm::ALL.iter().copied().filter(|a| a.serves(collective)).collect();
        let algorithm = serving.get(pick(dice, 2 * serving.len())).copied();
        let elements = [1, 500, 20_000, LARGE][pick(dice, 4)];
        let count = match collective {
            Collective::Allreduce | Collective::Reduce | Collective::Broadcast => elements,
            Collective::Barrier => 0,
            _ => elements / members.len(),
        };
        let root = members[pick(dice, members.len())];
        let segment = dice.below(4);
        let way = [Way::Blocking, Way::Started, Way::Tested, Way::Background][pick(dice, 4)];
        let user = collective.reduces() && dice.below(4) == 0;
        Case { collective, algorithm, count, root, segment, way, user }
    }

    fn combination(&self) -> Combination {
        if !self.user {
            return Combination::BuiltIn(DataType::U64, Operation::Sum);
        }
        let element = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
        let add = move |a: &[u8], b: &[u8], sum: &mut [u8], _: u64| {
            for ((a, b), sum) in a.chunks(8).zip(b.chunks(8)).zip(sum.chunks_mut(8)) {
                sum.copy_from_slice(&(element(a) + element(b)).to_ne_bytes());
            }
            Ok(())
        };
        let reduce = Arc::new(add);
        Combination::User(Reducer { reduce, element_bytes: 8, ordered: false, background: true })
    }

    fn is_in_segment(&self, rank: Rank) -> bool {
        self.segment >> (rank.0 % 2) & 1 == 1
    }

    /// Elements of a member's input.
    fn input_len(&self, members: usize) -> usize {
        match self.collective {
            Collective::ReduceScatter | Collective::Scatter | Collective::Alltoall => {
                self.count * members
            }
            _ => self.count,
        }
    }

    /// What `me` has to get: elements by index; none where it gets nothing.
    fn result(&self, members: &[Rank], me: Rank) -> (usize, impl Fn(usize) -> u64) {
        let (case, n) = (*self, members.len());
        let own = members.iter().position(|member| *member == me).unwrap_or(0);
        let len = match self.collective {
            Collective::Reduce | Collective::Gather if me != self.root => 0,
            Collective::Barrier => 0,
            Collective::Allgather | Collective::Gather | Collective::Alltoall => self.count * n,
            _ => self.count,
        };
        let members = members.to_vec();
        let at = move |index: usize| match case.collective {
            Collective::Allreduce | Collective::Reduce => {
                members.iter().map(|member| value(*member, index)).sum()
            }
            Collective::ReduceScatter => {
                members.iter().map(|member| value(*member, own * case.count + index)).sum()
            }
            Collective::Broadcast => value(case.root, index),
            Collective::Scatter => value(case.root, own * case.count + index),
            Collective::Allgather | Collective::Gather => {
                value(members[index / case.count], index % case.count)
            }
            Collective::Alltoall => {
                value(members[index / case.count], own * case.count + index % case.count)
            }
            Collective::Barrier => 0,
        };
        (len, at)
    }
}

/// Memory of one rank, in a segment and elsewhere: input and output one behind the other.
struct Memory {
    rank: Rank,
    private: Vec<u64>,
    segment: *mut u64,
}

impl Memory {
    fn new(rt: &Runtime) -> gaspi::Result<Memory> {
        let bytes = 2 * LARGE * size_of::<u64>();
        rt.segment_create(SEGMENT, bytes as u64, GroupId::ALL, GUARD, Init::Zeroed)?;
        let segment = rt.segment_ptr(SEGMENT)?.cast();
        Ok(Memory { rank: rt.rank(), private: vec![0; 2 * LARGE], segment })
    }

    /// The buffers of an operation, the input filled.
    fn request(&mut self, case: &Case, members: usize) -> Request {
        let start = match case.is_in_segment(self.rank) {
            true => self.segment,
            false => self.private.as_mut_ptr(),
        };
        for index in 0..case.input_len(members) {
            // SAFETY: an input is no longer than LARGE.
            unsafe { start.add(index).write(value(self.rank, index)) };
        }
        // SAFETY: both places have twice LARGE elements.
        let receive = unsafe { start.add(LARGE) };
        for index in 0..LARGE.min(case.count * members) {
            // SAFETY: the index is below LARGE, and so many elements follow `receive`.
            unsafe { receive.add(index).write(u64::MAX) };
        }
        Request {
            collective: case.collective,
            send: start.cast(),
            receive: receive.cast(),
            count: case.count as u64,
            blocks: Vec::new(),
            combination: case.combination(),
            root: case.root,
            algorithm: case.algorithm,
            mode: None,
            background: case.way == Way::Background,
        }
    }

    /// Compares a result with what it has to be.
    fn check(&self, case: &Case, request: &Request, members: &[Rank]) -> Result<()> {
        let (len, expected) = case.result(members, self.rank);
        for index in 0..len {
            // SAFETY: the operation has ended, and has written so many elements.
            let found = unsafe { request.receive.cast::<u64>().add(index).read() };
            if found != expected(index) {
                return Err(format!(
                    "{case:?}: element {index} of {len} is {found}, not {}",
                    expected(index)
                ));
            }
        }
        Ok(())
    }
}

/// Calls again after each timeout.
fn again(mut call: impl FnMut() -> gaspi::Result<()>) -> gaspi::Result<()> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        match call() {
            Err(error) if error.is_timeout() && Instant::now() < end => {}
            other => return other,
        }
    }
}

/// Carries out one operation; false if its algorithm does not serve it here.
fn operate(
    rt: &Runtime,
    group: GroupId,
    case: &Case,
    request: &Request,
    timeout: Timeout,
) -> gaspi::Result<bool> {
    let outcome = if case.way == Way::Blocking {
        // SAFETY: the buffers are not touched until it has ended.
        again(|| unsafe { run(rt, group, request, timeout) })
    } else {
        let mut started = None;
        let begun = again(|| {
            // SAFETY: the buffers are not touched until `finish` says that it has ended.
            started = Some(unsafe { start_raw(rt, group, request, timeout) }?);
            Ok(())
        });
        match (begun, started) {
            (Ok(()), Some(started)) => finish(started, case.way, timeout),
            (begun, _) => begun,
        }
    };
    match outcome {
        Err(Error::Unsupported { .. }) => Ok(false),
        other => other.map(|()| true),
    }
}

fn finish(mut started: Started<'_>, way: Way, timeout: Timeout) -> gaspi::Result<()> {
    if way == Way::Tested {
        while started.test()?.is_none() {
            std::thread::yield_now();
        }
        return Ok(());
    }
    again(|| started.wait(timeout).map(drop))
}

/// Carries out operations that have to succeed.
fn go_on(rt: &Runtime, memory: &mut Memory, group: GroupId, dice: &mut Seed) -> Result<()> {
    let members = rt.group_ranks(group).map_err(|error| error.to_string())?;
    for _ in 0..AFTERWARDS {
        let case = Case::draw(dice, &members);
        let request = memory.request(&case, members.len());
        match operate(rt, group, &case, &request, GUARD) {
            Ok(true) => memory.check(&case, &request, &members)?,
            Ok(false) => {}
            Err(error) => return Err(format!("{group}: {case:?}: {error}")),
        }
    }
    Ok(())
}

fn group_of(rt: &Runtime, ranks: &[Rank]) -> gaspi::Result<GroupId> {
    let group = rt.group_create()?;
    for rank in ranks {
        rt.group_add(group, *rank)?;
    }
    rt.group_commit(group, GUARD)?;
    Ok(group)
}

/// A prepared operation beside the others: a sum over all ranks.
fn prepare_sum(rt: &Runtime, elements: usize) -> gaspi::Result<Prepared<'static, u64>> {
    let input = vec![u64::from(rt.rank().0); elements];
    let request = TypedRequest::allreduce(Operation::Sum, input, vec![0; elements]);
    Ok(prepare(rt, GroupId::ALL, request, GUARD)?)
}

fn die(seed: u64, victim: Rank) -> Result<()> {
    let said = |what: &str| {
        let what = what.to_owned();
        move |error: Error| format!("{what}: {error}")
    };
    let rt = join().map_err(said("joining"))?;
    let mut memory = Memory::new(&rt).map_err(said("segment_create"))?;
    let (me, size) = (rt.rank(), rt.size());
    let all: Vec<Rank> = (0..size).map(|rank| Rank(rank as u16)).collect();
    let survivors: Vec<Rank> = all.iter().copied().filter(|rank| *rank != victim).collect();
    let mut beside = prepare_sum(&rt, 2000).map_err(said("prepare"))?;
    let mut dice = Seed::new(seed);
    let mut untouched = None;
    if me != victim {
        let group = group_of(&rt, &survivors).map_err(said("a group without the victim"))?;
        go_on(&rt, &mut memory, group, &mut Seed::new(seed))?;
        untouched = Some(group);
    }
    println!("ready {}", me.0);
    let mut number = 0;
    let knew = loop {
        let case = Case::draw(&mut dice, &all);
        let request = memory.request(&case, all.len());
        let outcome = beside.start().and_then(|mut started| {
            let served = operate(&rt, GroupId::ALL, &case, &request, Timeout::Block)?;
            started.wait(Timeout::Block)?;
            Ok(served)
        });
        match outcome {
            Ok(true) => memory.check(&case, &request, &all)?,
            Ok(false) => {}
            Err(error) if names(&error, victim) => break monotonic_us(),
            Err(error) => return Err(format!("operation {number}, {case:?}: {error}")),
        }
        number += 1;
    };
    let Some(untouched) = untouched else {
        return Err("the victim thinks that it is dead".into());
    };
    println!("knows {} {knew}", me.0);
    go_on(&rt, &mut memory, untouched, &mut dice_after(seed))?;
    let next = group_of(&rt, &survivors).map_err(said("a new group"))?;
    go_on(&rt, &mut memory, next, &mut dice_after(seed + 1))?;
    for _ in 0..2 {
        let case = Case { way: Way::Blocking, ..Case::draw(&mut dice_after(seed), &all) };
        let request = memory.request(&Case { algorithm: None, ..case }, all.len());
        match operate(&rt, GroupId::ALL, &case, &request, Timeout::Block) {
            Err(error) if names(&error, victim) => {}
            other => return Err(format!("the group of the dead one, {case:?}: {other:?}")),
        }
    }
    let barrier = rt.barrier(next, GUARD);
    barrier.map_err(said("barrier of the survivors"))?;
    rt.term(GUARD).map_err(said("term"))?;
    println!("survived {}", me.0);
    Ok(())
}

/// What all survivors draw, wherever each of them learnt of the death.
fn dice_after(seed: u64) -> Seed {
    Seed::new(seed.wrapping_mul(0x1001).wrapping_add(7))
}

fn stop(seed: u64, file: &Path) -> Result<()> {
    let rt = join().map_err(|error| format!("joining: {error}"))?;
    let mut memory = Memory::new(&rt).map_err(|error| format!("segment_create: {error}"))?;
    let all: Vec<Rank> = (0..rt.size()).map(|rank| Rank(rank as u16)).collect();
    println!("ready {}", rt.rank().0);
    let mut dice = Seed::new(seed);
    let mut rounds = 0;
    loop {
        let case = Case::draw(&mut dice, &all);
        let request = memory.request(&case, all.len());
        match operate(&rt, GroupId::ALL, &case, &request, SHORT) {
            Ok(true) => memory.check(&case, &request, &all)?,
            Ok(false) => {}
            Err(error) => return Err(format!("round {rounds}, {case:?}: {error}")),
        }
        // Rank 0 decides, all end with the same round.
        let over = u64::from(rt.rank() == Rank(0) && !file.exists());
        let sum = Case { collective: Collective::Broadcast, algorithm: None, count: 1, ..case };
        let sum = Case { root: Rank(0), way: Way::Blocking, segment: 0, user: false, ..sum };
        let mut request = memory.request(&sum, all.len());
        request.send = (&raw const over).cast();
        operate(&rt, GroupId::ALL, &sum, &request, SHORT)
            .map_err(|error| format!("agreeing after round {rounds}, {case:?}: {error}"))?;
        rounds += 1;
        // SAFETY: one element has been written there.
        if unsafe { request.receive.cast::<u64>().read() } == 1 {
            break;
        }
    }
    rt.barrier(GroupId::ALL, GUARD).map_err(|error| format!("barrier at the end: {error}"))?;
    rt.term(GUARD).map_err(|error| format!("term: {error}"))?;
    println!("finished {} after {rounds} rounds", rt.rank().0);
    Ok(())
}
