//! The procedures of collective operations: arguments checked, algorithm chosen, operation started,
//! continued, waited for.

use std::sync::{Arc, Mutex, TryLockError};

use gaspi_core::{Error, GroupId, Inside, Result, Runtime, Timeout};

use crate::algorithms::Collective;
use crate::apart::{self, Apart};
use crate::engine::{Desk, Engine, Entry, Prepared, lock};
use crate::fingerprint::mix;
use crate::kernel::{Source, Target};
use crate::plan::{Plan, PlanKey};
use crate::print::Print;
use crate::request::{Blocks, Combination, Request};
use crate::station::{self, Brief, Operation, Station};
use crate::steps::Shape;
use crate::task::{Arithmetic, Buffers};

/// An operation that was started or prepared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Handle(pub u64);

/// A request that fits its group.
struct Call<'a> {
    request: &'a Request,
    station: &'a Arc<Station>,
    /// Index of the root among the members.
    root: u32,
}

impl Call<'_> {
    /// Index of this rank among the members.
    fn me(&self) -> usize {
        self.station.channel.me()
    }

    fn key(&self) -> PlanKey {
        let Request { collective, count, ref combination, root, algorithm, ref blocks, .. } =
            *self.request;
        let counts = |index: usize| blocks.get(index).map_or_else(Vec::new, |b| b.counts.clone());
        PlanKey {
            collective,
            count,
            element_bytes: combination.element_bytes(),
            root,
            algorithm,
            user: match combination {
                Combination::User(reducer) => Some(reducer.ordered),
                Combination::BuiltIn(..) => None,
            },
            counts: counts(0),
            receives: counts(1),
        }
    }

    fn shape(&self, key: &PlanKey) -> Shape {
        let channel = &self.station.channel;
        let spec = channel.spec();
        let of_all_to_all = key.collective == Collective::Alltoall && !key.counts.is_empty();
        let (counts, sends) = match of_all_to_all {
            true => (Vec::new(), key.counts.clone()),
            false => (key.counts.clone(), Vec::new()),
        };
        let size = channel.ranks().len();
        Shape {
            me: channel.me() as u32,
            size: size as u32,
            count: key.count,
            counts,
            sends,
            receives: key.receives.clone(),
            element_bytes: key.element_bytes,
            root: self.root,
            nodes: (0..size).map(|member| channel.node(member)).collect(),
            message_bytes: spec.message_bytes,
            slots: spec.slots,
            stage_bytes: spec.stage_bytes,
            shares_cores: channel.shares_cores(),
            one_machine: channel.is_one_machine(),
        }
    }
}

/// Errors unless all sizes can be computed with.
fn check_sizes(request: &Request, members: usize) -> Result<()> {
    let element_bytes = request.combination.element_bytes();
    if element_bytes == 0 {
        let reason = "an element has at least one byte".to_owned();
        return Err(Error::Size { size: 0, reason });
    }
    let too_many = |number| Error::Number {
        number,
        reason: format!(
            "so many elements of {element_bytes} bytes for {members} members are more than memory \
             can be"
        ),
    };
    let fits = |count: u64, times: u64| {
        let bytes = count.checked_mul(element_bytes).and_then(|bytes| bytes.checked_mul(times));
        bytes.filter(|bytes| i64::try_from(*bytes).is_ok()).ok_or_else(|| too_many(count))
    };
    fits(request.count, members as u64)?;
    let (collective, given) = (request.collective, request.blocks.len());
    let wanted = match collective {
        Collective::Alltoall => [0, 2],
        Collective::Allgather | Collective::ReduceScatter => [0, 1],
        Collective::Gather | Collective::Scatter => [0, 1],
        _ => [0, 0],
    };
    if !wanted.contains(&given) {
        let reason = format!("a {collective} takes {} lists of counts, or none", wanted[1]);
        return Err(Error::Number { number: given as u64, reason });
    }
    let places_blocks = matches!(collective, Collective::Allgather | Collective::Alltoall);
    for blocks in &request.blocks {
        if !blocks.displacements.is_empty() && !places_blocks {
            let reason = format!("the blocks of a {collective} follow each other");
            return Err(Error::Number { number: blocks.displacements.len() as u64, reason });
        }
        if blocks.counts.len() != members {
            let number = blocks.counts.len() as u64;
            let reason = format!("there has to be a count for each of the {members} members");
            return Err(Error::Number { number, reason });
        }
        let sum = blocks.counts.iter().try_fold(0u64, |sum, count| sum.checked_add(*count));
        fits(sum.ok_or_else(|| too_many(u64::MAX))?, 1)?;
    }
    Ok(())
}

impl<'a> Call<'a> {
    /// Finds the root among the members and checks what can be checked without the others.
    fn new(request: &'a Request, station: &'a Arc<Station>) -> Result<Call<'a>> {
        let (ranks, me) = (station.channel.ranks(), station.channel.me());
        check_sizes(request, ranks.len())?;
        if let Combination::BuiltIn(ty, op) = request.combination
            && request.collective.reduces()
            && !op.is_defined_for(ty)
        {
            let reason = format!("{op} is not defined for elements of type {ty}");
            return Err(Error::Unsupported { reason });
        }
        if let (Collective::Alltoall, [sends, receives]) = (request.collective, &*request.blocks)
            && let (Some(to), Some(from)) = (sends.counts.get(me), receives.counts.get(me))
            && to != from
        {
            let reason = format!("this rank sends itself so many elements, but receives {from}");
            return Err(Error::Number { number: *to, reason });
        }
        let root = match request.collective.is_rooted() {
            false => 0,
            true => ranks.iter().position(|rank| *rank == request.root).ok_or_else(|| {
                let group = station.channel.group();
                let reason = format!("it is the root, but no member of {group}");
                Error::InvalidRank { rank: request.root, reason }
            })?,
        };
        Ok(Call { request, station, root: root as u32 })
    }

    /// The plan, made or kept.
    fn kept_plan(&self, engine: &Engine, desk: &Desk) -> Result<Arc<Plan>> {
        lock(&desk.plans).get(self.key(), |key| key.plan(&self.shape(key), engine.preferred()?))
    }

    fn print(&self, plan: &Plan) -> u64 {
        let Request { collective, ref combination, root, count, ref blocks, .. } = *self.request;
        let counts = match collective {
            // What each pair exchanges is its own affair.
            Collective::Alltoall => &[][..],
            _ => blocks.first().map_or(&[][..], |blocks| &blocks.counts),
        };
        let count = if blocks.is_empty() { count } else { 0 };
        Print { collective, combination, algorithm: plan.algorithm, root, count, counts }.bits()
    }

    /// A hash of what a continued call must have in common with the one before.
    fn arguments(&self, print: u64) -> u64 {
        let Request { send, receive, ref blocks, ref combination, .. } = *self.request;
        let lists = blocks.iter().flat_map(|blocks| [&blocks.counts, &blocks.displacements]);
        let mut words: Vec<u64> = lists.flatten().copied().collect();
        if let Combination::User(reducer) = combination {
            words.push(Arc::as_ptr(&reducer.reduce).addr() as u64);
        }
        if words.is_empty() {
            // As of a call that was begun swiftly.
            return station::arguments(print, send, receive);
        }
        words.extend([print, send as u64, receive as u64]);
        mix(&words)
    }

    fn arithmetic(&self) -> Arithmetic {
        match &self.request.combination {
            Combination::BuiltIn(ty, op) => Arithmetic::BuiltIn(*op, *ty),
            Combination::User(reducer) => Arithmetic::User(reducer.clone()),
        }
    }

    /// The memory of the request. Blocks that do not follow each other, and the input of an
    /// all-to-all in place, get own memory.
    ///
    /// # Safety
    /// That of [`start`]; `apart` lives as long as the operation.
    unsafe fn buffers(&self, plan: &Plan, apart: &mut Apart) -> Result<Buffers<'static>> {
        let Request { collective, send, receive, ref blocks, .. } = *self.request;
        let [input, output] = plan.own;
        let element_bytes = self.request.combination.element_bytes();
        let pieces_of = |blocks: Option<&Blocks>| {
            blocks.map_or(Ok(None), |blocks| apart::pieces(blocks, element_bytes))
        };
        let (sent, received) = match collective {
            Collective::Alltoall => (pieces_of(blocks.first())?, pieces_of(blocks.get(1))?),
            _ => (None, pieces_of(blocks.first())?),
        };
        received.as_deref().map_or(Ok(()), apart::check_disjoint)?;
        for (pointer, bytes, what) in
            [(send, input, "send"), (receive.cast_const(), output, "receive")]
        {
            if pointer.is_null() && bytes > 0 {
                return Err(Error::Null { what });
            }
        }
        let before = received.as_ref().map_or(plan.before, |pieces| pieces[self.me()].offset);
        let in_place = is_in_place(collective, plan.own, before, send, receive);
        let (input_end, output_end) = (
            sent.as_deref().map_or(input, apart::end),
            received.as_deref().map_or(output, apart::end),
        );
        let disjoint = input == 0 || output == 0 || {
            let (a, b) = (send as u64, receive as u64);
            a + input_end <= b || b + output_end <= a
        };
        if !in_place && !disjoint {
            let reason =
                "send and receive overlap; use the same memory, or different memory".to_owned();
            return Err(Error::Size { size: input.max(output), reason });
        }
        // SAFETY: as the caller promises.
        let input = unsafe { Source::new(send, input_end as usize) };
        // SAFETY: as above.
        let output = unsafe { Target::new(receive, output_end as usize) };
        let overwritten = in_place && collective == Collective::Alltoall && !input.is_empty();
        Ok(Buffers {
            input: match sent {
                Some(pieces) => apart.take_input(
                    pieces.iter().map(|piece| input.part(piece.offset, piece.bytes)).collect(),
                ),
                None if overwritten => apart.take_input(vec![input]),
                None => input,
            },
            output: match received {
                Some(pieces) => apart.take_output(
                    pieces.iter().map(|piece| output.part(piece.offset, piece.bytes)).collect(),
                ),
                None if plan.keeps_apart && !output.is_empty() => apart.take_output(vec![output]),
                None => output,
            },
        })
    }
}

/// Whether input and output share memory in the way that the operation allows.
pub(crate) fn is_in_place(
    collective: Collective,
    own: [u64; 2],
    before: u64,
    send: *const u8,
    receive: *mut u8,
) -> bool {
    let (send, receive) = (send as u64, receive as u64);
    match (collective, own) {
        (_, [0, _] | [_, 0]) => true,
        (Collective::Allgather | Collective::Gather, _) => send == receive + before,
        (Collective::Scatter | Collective::ReduceScatter, _) => receive == send + before,
        (Collective::Alltoall, [input, output]) => send == receive && input == output,
        _ => send == receive,
    }
}

/// Carries out an operation and waits for its end on this rank. After a timeout, call again with
/// the same arguments to continue. The first operation of a group waits until all members have
/// called one.
///
/// # Errors
/// - [`Error::Timeout`]: the operation goes on when it is called again.
/// - [`Error::Mismatch`]: the ranks called different operations, on all that called; a rank that
///   had only to send, over messages, is told by its next operation of the group.
/// - [`Error::RankDied`], [`Error::RankLeft`]: a member is gone that is needed.
/// - [`Error::ActiveCollective`]: another one was interrupted by its timeout, or runs in another
///   thread.
/// - [`Error::InvalidRank`], [`Error::Number`], [`Error::Size`], [`Error::Null`],
///   [`Error::Unsupported`]: what the arguments say cannot be; nothing has happened.
///
/// # Safety
/// The memory that the request names is readable (send) and writable (receive), and nobody else
/// writes to the one or uses the other until the operation has ended.
pub unsafe fn run(rt: &Runtime, group: GroupId, request: &Request, timeout: Timeout) -> Result<()> {
    let brief = Brief::of(request);
    if let Some(brief) = &brief {
        let once = timeout == Timeout::Test;
        // SAFETY: as the caller promises.
        let done = rt.swiftly(|inside| unsafe { run_swiftly(&inside, group, brief, once) });
        if done.is_some() {
            return Ok(());
        }
    }
    let engine = Engine::of(rt);
    let deadline = timeout.deadline();
    let desk = engine.desk(rt, group, timeout)?;
    let mut apart = match desk.blocking.try_lock() {
        Ok(apart) => apart,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        // Another thread holds it only for a moment, to find that this one's is under way.
        Err(TryLockError::WouldBlock) if desk.station.is_own_underway() => lock(&desk.blocking),
        Err(TryLockError::WouldBlock) => {
            let active = "a collective of another thread".to_owned();
            return Err(Error::ActiveCollective { group, active });
        }
    };
    let call = Call::new(request, &desk.station)?;
    let plan = call.kept_plan(engine, &desk)?;
    let print = call.print(&plan);
    let arguments = call.arguments(print);
    let operation = match desk.station.continued(arguments)? {
        Some(operation) => operation,
        None => {
            *apart = Apart::default();
            // SAFETY: as the caller promises; own memory stays until the operation has ended.
            let buffers = unsafe { call.buffers(&plan, &mut apart) }?;
            apart.pack();
            if let Some(brief) = &brief {
                desk.station.remember(brief, &plan, print);
            }
            let blocked =
                desk.station.block((arguments, print), &plan, &call.arithmetic(), buffers);
            blocked.inspect_err(|_| *apart = Apart::default())?
        }
    };
    let outcome = engine.wait(&desk.station, &operation, deadline);
    if !outcome.as_ref().is_err_and(Error::is_timeout) {
        if outcome.is_ok() {
            apart.unpack();
        }
        let own = std::mem::take(&mut *apart);
        if operation.is_still_used() {
            own.abandon();
        }
        desk.station.unblock(operation);
    }
    outcome
}

/// What [`run`] does for a request of the simple kind, as far as nothing is in the way. `None` says
/// that it has to be called then, with the same arguments: nothing has happened, or the operation
/// is under way. `once` is for a call that may not wait at all.
///
/// # Safety
/// That of [`run`].
#[inline]
pub unsafe fn run_swiftly(
    inside: &Inside<'_>,
    group: GroupId,
    brief: &Brief,
    once: bool,
) -> Option<()> {
    let desk = Engine::desk_inside(inside, group)?;
    // SAFETY: as the caller promises.
    unsafe { desk.station.run_swiftly(brief, once) }
}

/// Starts an operation. Operations of a group are started in the same order on all members, and run
/// in that order. Only the first one of a group waits, `timeout` at most, until all members have
/// started one; after a timeout, call again.
///
/// # Errors
/// Those of [`run`] that come from arguments.
///
/// # Safety
/// That of [`run`].
pub unsafe fn start(
    rt: &Runtime,
    group: GroupId,
    request: &Request,
    timeout: Timeout,
) -> Result<Handle> {
    let engine = Engine::of(rt);
    let desk = engine.desk(rt, group, timeout)?;
    let call = Call::new(request, &desk.station)?;
    let plan = call.kept_plan(engine, &desk)?;
    let mut apart = Apart::default();
    // SAFETY: as the caller promises; own memory goes along.
    let buffers = unsafe { call.buffers(&plan, &mut apart) }?;
    apart.pack();
    let operation = Arc::new(Operation::new(call.print(&plan), request.background));
    if request.background {
        engine.prepare_to_tend()?;
    }
    desk.station.start(&operation, &plan, &call.arithmetic(), buffers)?;
    if request.background {
        engine.tend(&desk.station);
    }
    let station = Arc::clone(&desk.station);
    Ok(Handle(engine.register(Entry {
        operation,
        station,
        prepared: None,
        unpacks: apart.has_output(),
        apart: Mutex::new(apart),
    })))
}

/// Prepares an operation that is to be started again and again, on a channel of its own: it
/// overlaps with all others, in any order. All members of the group prepare it together; after a
/// timeout, call again.
///
/// # Errors
/// As [`start`].
///
/// # Safety
/// That of [`run`], for as long as the handle lives and whenever the operation is under way.
pub unsafe fn prepare(
    rt: &Runtime,
    group: GroupId,
    request: &Request,
    timeout: Timeout,
) -> Result<Handle> {
    let engine = Engine::of(rt);
    check_sizes(request, rt.group_ranks(group)?.len())?;
    let station = engine.open(rt, group, timeout)?;
    let prepared = (|| {
        let call = Call::new(request, &station)?;
        let key = call.key();
        let plan = key.plan(&call.shape(&key), engine.preferred()?)?;
        let mut apart = Apart::default();
        // SAFETY: as the caller promises; own memory goes along.
        let buffers = unsafe { call.buffers(&plan, &mut apart) }?;
        let operation = Arc::new(Operation::new(call.print(&plan), request.background));
        let arithmetic = call.arithmetic();
        let prepared = Some(Prepared { plan, arithmetic, buffers });
        let station = Arc::clone(&station);
        let unpacks = apart.has_output();
        Ok(Entry { operation, station, prepared, apart: Mutex::new(apart), unpacks })
    })();
    match prepared {
        Ok(entry) => Ok(Handle(engine.register(entry))),
        Err(error) => {
            engine.close(&station);
            Err(error)
        }
    }
}

/// Starts a prepared operation that is not under way.
///
/// # Errors
/// [`Error::InvalidOperation`]: the handle is not one of a prepared operation, or it is under way;
/// [`Error::RankDied`]; and those that ended an earlier run.
pub fn restart(rt: &Runtime, handle: Handle) -> Result<()> {
    let engine = Engine::of(rt);
    let entry = engine.entry(handle.0)?;
    let Some(prepared) = &entry.prepared else {
        return Err(misused(handle, "it was started once and cannot be started again"));
    };
    // Another thread may be starting it.
    let Ok(mut apart) = entry.apart.try_lock() else {
        return Err(misused(handle, "another thread is starting it"));
    };
    if entry.operation.is_active() {
        return Err(misused(handle, "it is under way; wait for it, then start it again"));
    }
    let background = entry.operation.background;
    if background {
        engine.prepare_to_tend()?;
    }
    apart.pack();
    let Prepared { plan, arithmetic, buffers } = prepared;
    entry.station.start(&entry.operation, plan, arithmetic, *buffers)?;
    if background {
        engine.tend(&entry.station);
    }
    Ok(())
}

/// Whether an operation has ended, which it is helped to. A prepared one that is not under way has.
/// The handle of one that runs once is free when this says true or gives an error.
///
/// # Errors
/// [`Error::InvalidOperation`], and how the operation failed.
pub fn test(rt: &Runtime, handle: Handle) -> Result<bool> {
    match wait(rt, handle, Timeout::Test) {
        Ok(()) => Ok(true),
        Err(error) if error.is_timeout() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Waits until an operation has ended. Otherwise like [`test`].
///
/// # Errors
/// [`Error::Timeout`]: it goes on, and can be waited for again; and those of [`test`].
pub fn wait(rt: &Runtime, handle: Handle, timeout: Timeout) -> Result<()> {
    let engine = Engine::of(rt);
    let entry = engine.entry(handle.0)?;
    if entry.prepared.is_some() && entry.operation.is_idle() {
        return Ok(());
    }
    let outcome = engine.wait(&entry.station, &entry.operation, timeout.deadline());
    if outcome.as_ref().is_err_and(Error::is_timeout) {
        return outcome;
    }
    if outcome.is_ok() && entry.unpacks {
        let mut apart = lock(&entry.apart);
        // Another thread that waited may have started the operation again.
        if !entry.operation.is_active() {
            apart.unpack();
        }
    }
    if entry.prepared.is_none() {
        // Two threads may have waited.
        engine.release(handle.0);
    }
    outcome
}

/// Frees a prepared operation that is not under way.
///
/// # Errors
/// [`Error::InvalidOperation`]: it is under way, or there is none.
pub fn free(rt: &Runtime, handle: Handle) -> Result<()> {
    let engine = Engine::of(rt);
    let entry = engine.entry(handle.0)?;
    if entry.operation.is_active() {
        return Err(misused(handle, "it is under way; wait for it, then free it"));
    }
    if engine.release(handle.0).is_some() && entry.prepared.is_some() {
        engine.close(&entry.station);
    }
    Ok(())
}

/// Whether there is an operation of this handle: neither has it ended, unless it is a prepared one,
/// nor was it freed.
pub fn exists(rt: &Runtime, handle: Handle) -> bool {
    Engine::of(rt).entry(handle.0).is_ok()
}

#[cold]
fn misused(handle: Handle, reason: &str) -> Error {
    Error::InvalidOperation { handle: handle.0, reason: reason.to_owned() }
}
