//! A request that was checked against its group, as far as possible without the other members.

use std::sync::Arc;

use gaspi_core::{Error, Rank, Result};

use crate::collective::Collective;
use crate::engine::{Engine, GroupContext};
use crate::exec::blocking;
use crate::exec::buffers::{Arithmetic, Buffers, is_in_place};
use crate::exec::executor::Executor;
use crate::exec::pack::{self, PackBuffers};
use crate::kernel::{Source, Target};
use crate::mode::Mode;
use crate::plan::{Plan, PlanKey, exceeds_caches};
use crate::request::{Blocks, Combination, Request};
use crate::signature::{Description, mix};
use crate::steps::Shape;

/// A request that was checked against its group.
pub(crate) struct CheckedRequest<'a> {
    request: &'a Request,
    executor: &'a Arc<Executor>,
    mode: Mode,
    /// The root, and its index among the members.
    root_rank: Rank,
    root: u32,
    /// As in [`PlanKey`].
    part_of_long: bool,
}

impl CheckedRequest<'_> {
    /// The same as one of several that follow each other, with so many bytes in all.
    pub(crate) fn part_of(self, bytes: u64) -> Self {
        CheckedRequest { part_of_long: exceeds_caches(bytes), ..self }
    }

    /// The same all-reduce with that member at the root of its tree, by an algorithm that [has
    /// any](crate::algorithms::Algorithm::has_any_root).
    pub(crate) fn with_root(self, root: u32) -> Self {
        let root_rank = self.executor.channel.ranks()[root as usize];
        CheckedRequest { root_rank, root, ..self }
    }

    /// Index of this rank among the members.
    fn me(&self) -> usize {
        self.executor.channel.me()
    }

    pub(crate) fn key(&self) -> PlanKey {
        let Request { collective, count, ref combination, algorithm, ref blocks, .. } =
            *self.request;
        let counts = |index: usize| blocks.get(index).map_or_else(Vec::new, |b| b.counts.clone());
        PlanKey {
            collective,
            count,
            element_bytes: combination.element_bytes(),
            root: self.root_rank,
            algorithm,
            mode: self.mode,
            user: match combination {
                Combination::User(reducer) => Some(reducer.ordered),
                Combination::BuiltIn(..) => None,
            },
            counts: counts(0),
            receives: counts(1),
            part_of_long: self.part_of_long,
        }
    }

    pub(crate) fn shape(&self, key: &PlanKey) -> Shape {
        let channel = &self.executor.channel;
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
            agreed: false,
        }
    }
}

impl<'a> CheckedRequest<'a> {
    /// Finds the root among the members and checks the request.
    pub(crate) fn new(
        engine: &Engine,
        request: &'a Request,
        executor: &'a Arc<Executor>,
    ) -> Result<CheckedRequest<'a>> {
        let usual = engine.mode()?;
        let (ranks, me) = (executor.channel.ranks(), executor.channel.me());
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
                let group = executor.channel.group();
                let reason = format!("it is the root, but no member of {group}");
                Error::InvalidRank { rank: request.root, reason }
            })?,
        };
        let mode = request.mode.unwrap_or(usual);
        let (root_rank, root, part_of_long) = (request.root, root as u32, false);
        Ok(CheckedRequest { request, executor, mode, root_rank, root, part_of_long })
    }

    /// The plan, cached or made.
    pub(crate) fn cached_plan(&self, engine: &Engine, context: &GroupContext) -> Result<Arc<Plan>> {
        context.plans.lock().get(self.key(), |key| key.plan(&self.shape(key), engine.preferred()?))
    }

    pub(crate) fn signature(&self, plan: &Plan) -> u64 {
        let Request { collective, count, ref blocks, .. } = *self.request;
        let counts = match collective {
            // Each pair has its own counts, which the others do not know.
            Collective::Alltoall => &[][..],
            _ => blocks.first().map_or(&[][..], |blocks| &blocks.counts),
        };
        let count = if blocks.is_empty() { count } else { 0 };
        self.signature_of(plan, count, counts)
    }

    /// The same with other counts than those of the request.
    pub(crate) fn signature_of(&self, plan: &Plan, count: u64, counts: &[u64]) -> u64 {
        let Request { collective, ref combination, .. } = *self.request;
        let (algorithm, mode, root) = (plan.algorithm, self.mode, self.root_rank);
        Description { collective, combination, algorithm, mode, root, count, counts }.bits()
    }

    /// A hash of what a continued call must have in common with the one before.
    pub(crate) fn arguments(&self, signature: u64) -> u64 {
        let Request { send, receive, ref blocks, ref combination, .. } = *self.request;
        let lists = blocks.iter().flat_map(|blocks| [&blocks.counts, &blocks.displacements]);
        let mut words: Vec<u64> = lists.flatten().copied().collect();
        if let Combination::User(reducer) = combination {
            words.push(Arc::as_ptr(&reducer.reduce).addr() as u64);
        }
        if words.is_empty() {
            // The same as for a call that the fast path has begun.
            return blocking::arguments_hash(signature, send, receive);
        }
        words.extend([signature, send as u64, receive as u64]);
        mix(&words)
    }

    pub(crate) fn arithmetic(&self) -> Arithmetic {
        match &self.request.combination {
            Combination::BuiltIn(ty, op) => Arithmetic::BuiltIn(*op, *ty),
            Combination::User(reducer) => Arithmetic::User(reducer.clone()),
        }
    }

    /// The memory of the request. Blocks that do not follow each other are packed, and the input of
    /// an all-to-all in place.
    ///
    /// # Safety
    /// That of [`start`](crate::start); `packed` lives as long as the operation.
    pub(crate) unsafe fn buffers(
        &self,
        plan: &Plan,
        packed: &mut PackBuffers,
    ) -> Result<Buffers<'static>> {
        let Request { collective, send, receive, ref blocks, .. } = *self.request;
        let [input, output] = plan.own;
        let element_bytes = self.request.combination.element_bytes();
        let pieces_of = |blocks: Option<&Blocks>| {
            blocks.map_or(Ok(None), |blocks| pack::pieces(blocks, element_bytes))
        };
        let (sent, received) = match collective {
            Collective::Alltoall => (pieces_of(blocks.first())?, pieces_of(blocks.get(1))?),
            _ => (None, pieces_of(blocks.first())?),
        };
        received.as_deref().map_or(Ok(()), pack::check_disjoint)?;
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
            sent.as_deref().map_or(input, pack::end),
            received.as_deref().map_or(output, pack::end),
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
        // SAFETY: the caller promises that the request's memory is readable.
        let input = unsafe { Source::new(send, input_end as usize) };
        // SAFETY: the caller promises that the request's memory is writable.
        let output = unsafe { Target::new(receive, output_end as usize) };
        let overwritten = in_place && collective == Collective::Alltoall && !input.is_empty();
        Ok(Buffers {
            input: match sent {
                Some(pieces) => packed.take_input(
                    pieces.iter().map(|piece| input.part(piece.offset, piece.bytes)).collect(),
                ),
                None if overwritten => packed.take_input(vec![input]),
                None => input,
            },
            output: match received {
                Some(pieces) => packed.take_output(
                    pieces.iter().map(|piece| output.part(piece.offset, piece.bytes)).collect(),
                ),
                None if plan.buffers_output && !output.is_empty() => {
                    packed.take_output(vec![output])
                }
                None => output,
            },
        })
    }
}

/// Errors unless all sizes can be computed with.
pub(crate) fn check_sizes(request: &Request, members: usize) -> Result<()> {
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
