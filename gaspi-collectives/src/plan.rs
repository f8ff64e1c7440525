//! Plans: which algorithm carries out an operation of a channel, with what comes before and after
//! its steps, and the plans that are kept.

use std::collections::HashSet;
use std::sync::Arc;

use gaspi_core::{Error, Rank, Result};

use crate::algorithms::{Algorithm, Collective};
use crate::choice;
use crate::steps::{Shape, Step, scratch_bytes};
use crate::task::expecting;

/// Steps that can be run again and again.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) algorithm: Algorithm,
    pub(crate) steps: Vec<Step>,
    pub(crate) scratch_bytes: u64,
    /// What all run instead where not all of them map all memory.
    pub(crate) detour: Option<Detour>,
    /// Bytes of input and output by member, where the operation is direct.
    pub(crate) extents: Vec<[u64; 2]>,
    /// Bytes of this member's input and output, and before its block where there are blocks.
    pub(crate) own: [u64; 2],
    pub(crate) before: u64,
    /// Whether data that steps take may go straight to its place.
    pub(crate) expects: bool,
    /// The last step that sends to a member, of each, where messages are lent their data; else
    /// none.
    pub(crate) lends: Vec<usize>,
    /// Whether the result is written when all steps have been done.
    pub(crate) keeps_apart: bool,
}

/// What members run in place of a direct operation.
#[derive(Debug)]
pub(crate) struct Detour {
    pub(crate) plan: Arc<Plan>,
    /// Whether also where the kernel would copy between processes, because this is faster: not
    /// where the call asks for the direct way, as it may on some members only. Lines tell.
    pub(crate) always: bool,
}

impl Plan {
    /// Whether members hear of each other by messages only.
    pub(crate) fn is_of_messages(&self) -> bool {
        !self.algorithm.requires_one_node()
    }

    /// Whether members use each other's input or output.
    pub(crate) fn is_direct(&self) -> bool {
        !self.extents.is_empty()
    }
}

/// What a plan depends on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PlanKey {
    pub(crate) collective: Collective,
    pub(crate) count: u64,
    pub(crate) element_bytes: u64,
    pub(crate) root: Rank,
    pub(crate) algorithm: Option<Algorithm>,
    /// Whether a function of the program combines, and in the order of the members.
    pub(crate) user: Option<bool>,
    pub(crate) counts: Vec<u64>,
    pub(crate) receives: Vec<u64>,
}

impl PlanKey {
    /// Chooses the algorithm and writes its steps.
    ///
    /// # Errors
    /// [`Error::Unsupported`]: there is none that serves.
    pub(crate) fn plan(&self, shape: &Shape, preferred: Option<Algorithm>) -> Result<Arc<Plan>> {
        let algorithm = choose(self, shape, preferred)?;
        let build = |algorithm: Algorithm, detour| {
            let steps = algorithm.steps(self.collective, shape).ok_or_else(|| {
                let reason = format!("{algorithm} cannot carry out this {}", self.collective);
                Error::Unsupported { reason }
            })?;
            let user = self.user.is_some();
            let caution = Caution::of(self.collective, shape, algorithm, user);
            let steps = caution.around(shape, steps);
            let scratch_bytes = scratch_bytes(&steps);
            let lends =
                if lends(&steps, shape.shares_cores) { last_sends(&steps) } else { Vec::new() };
            let expects = !algorithm.requires_one_node() && expecting::worth(&steps);
            let mut extents = extents(self.collective, shape);
            let own = extents[shape.me as usize];
            if !algorithm.requires_reach() {
                extents = Vec::new();
            }
            let before = before(shape);
            let keeps_apart = caution.keeps_apart;
            Ok(Arc::new(Plan {
                algorithm,
                steps,
                scratch_bytes,
                detour,
                extents,
                own,
                before,
                expects,
                lends,
                keeps_apart,
            }))
        };
        let detour = match (algorithm, choice::choose_unmapped(self.collective, shape)) {
            (Algorithm::Direct, Some(unmapped)) => {
                let always = self.algorithm.is_none();
                Some(Detour { plan: build(unmapped, None)?, always })
            }
            (Algorithm::Direct, None) => {
                let plan = build(Algorithm::Staged, None).ok();
                plan.map(|plan| Detour { plan, always: false })
            }
            _ => None,
        };
        build(algorithm, detour)
    }
}

/// The algorithm that was asked for, the one that the environment prefers where it serves, or that
/// of the table.
fn choose(key: &PlanKey, shape: &Shape, preferred: Option<Algorithm>) -> Result<Algorithm> {
    let collective = key.collective;
    let may = |algorithm: Algorithm| match key.user {
        None => true,
        // Functions of the program get private copies of elements, which messages are.
        Some(ordered) => {
            !algorithm.requires_one_node() && (!ordered || algorithm.keeps_order(collective, shape))
        }
    };
    let unsupported = |reason: String| Error::Unsupported { reason };
    if let Some(wanted) = key.algorithm {
        if !may(wanted) {
            let reason = format!("{wanted} does not serve this reduction of the program");
            return Err(unsupported(reason));
        }
        return choice::choose(collective, shape, Some(wanted))
            .map_err(|reason| unsupported(reason.to_string()));
    }
    let serves = |algorithm: Algorithm| {
        may(algorithm) && choice::choose(collective, shape, Some(algorithm)).is_ok()
    };
    if let Some(preferred) = preferred.filter(|preferred| serves(*preferred)) {
        return Ok(preferred);
    }
    let chosen = choice::choose_where(collective, shape, may)
        .map_err(|reason| unsupported(reason.to_string()))?;
    if let Some(preferred) = preferred {
        log::info!(
            "{preferred}, which the environment prefers, cannot carry out this {collective} of {} \
             elements on {} ranks; {chosen} does",
            shape.count,
            shape.size
        );
    }
    Ok(chosen)
}

/// Bytes of input and output of every member: nothing where a member has none.
fn extents(collective: Collective, shape: &Shape) -> Vec<[u64; 2]> {
    let whole = shape.bytes();
    let blocks = |member: u32| {
        let counts = shape.counts.get(member as usize);
        counts.copied().unwrap_or(shape.count) * shape.element_bytes
    };
    let all: u64 = (0..shape.size).map(blocks).sum();
    let at_root = |member: u32, bytes: u64| if member == shape.root { bytes } else { 0 };
    let of = |member: u32| match collective {
        Collective::Allreduce => [whole, whole],
        Collective::Reduce => [whole, at_root(member, whole)],
        Collective::Broadcast => [at_root(member, whole), whole],
        Collective::ReduceScatter => [all, blocks(member)],
        Collective::Allgather => [blocks(member), all],
        Collective::Gather => [blocks(member), at_root(member, all)],
        Collective::Scatter => [at_root(member, all), blocks(member)],
        Collective::Alltoall if shape.sends.is_empty() => [all, all],
        Collective::Alltoall => {
            let bytes = |counts: &[u64]| counts.iter().sum::<u64>() * shape.element_bytes;
            [bytes(&shape.sends), bytes(&shape.receives)]
        }
        Collective::Barrier => [0, 0],
    };
    (0..shape.size).map(of).collect()
}

/// Bytes of a result, of all members together, that is kept apart until all of it is there: copying
/// more takes longer than it takes all to meet before. Measured for four members.
const KEPT_APART: u64 = 512 << 10;

/// What is done so that no result is seen where the members do not agree, or where a function of
/// the program fails on one of them.
#[derive(Clone, Copy, Debug, Default)]
struct Caution {
    /// All meet before: whoever gets through knows that all others are in the same operation.
    meets_before: bool,
    /// All meet afterwards: each hears of a reduction that has failed anywhere.
    meets_after: bool,
    /// The result is written when all steps have been done, since they have brought the same
    /// knowledge.
    keeps_apart: bool,
}

impl Caution {
    fn of(collective: Collective, shape: &Shape, algorithm: Algorithm, user: bool) -> Caution {
        use Collective::{Allgather, Allreduce, Alltoall, ReduceScatter};
        // Lines bring all members together by themselves.
        if algorithm.requires_one_node() {
            return Caution::default();
        }
        let meets_after = user && collective.reduces();
        // Of two members the one hears of the other with the first message. Who only sends never
        // waits.
        let depends_on_all = matches!(collective, Allreduce | ReduceScatter | Allgather | Alltoall);
        if shape.size <= 2 || !depends_on_all {
            return Caution { meets_after, ..Caution::default() };
        }
        // What members exchange pair by pair the others do not know.
        let small = shape.sends.is_empty()
            && extents(collective, shape)
                .iter()
                .all(|[input, output]| input.max(output) <= &KEPT_APART);
        Caution { meets_before: !small, meets_after, keeps_apart: small }
    }

    /// The steps with all that comes before and after them.
    fn around(self, shape: &Shape, steps: Vec<Step>) -> Vec<Step> {
        let meet = |wanted: bool| {
            let steps = || Algorithm::Dissemination.steps(Collective::Barrier, shape);
            wanted.then(steps).flatten().unwrap_or_default()
        };
        [meet(self.meets_before), steps, meet(self.meets_after)].concat()
    }
}

/// Who passes on what it receives, or combines with it, has it in its cache, and is as quick to
/// copy it once more: but where it sends so much that no cache holds it, and, where ranks share
/// cores and each gets the time that another one saves, up to so much. Bytes that a member sends in
/// all, measured for two and four.
const LENT_PASSING: u64 = 128 << 20;
const LENT_PASSING_SHARING: u64 = 3 << 19;

/// Whether messages are lent their data, where they may be.
fn lends(steps: &[Step], shares_cores: bool) -> bool {
    let mut sent = 0;
    let mut receives = false;
    for step in steps {
        match step {
            Step::Send { src, .. } => sent += src.bytes,
            Step::Receive { dst, .. } | Step::ReceiveReduce { dst, .. } => {
                receives |= dst.bytes > 0
            }
            _ => {}
        }
    }
    let pays = sent >= LENT_PASSING || shares_cores && sent <= LENT_PASSING_SHARING;
    sent > 0 && (!receives || pays)
}

/// The last of the steps that send to a member, of each, in order.
fn last_sends(steps: &[Step]) -> Vec<usize> {
    let mut seen = HashSet::new();
    let sends_last = |(at, step): (usize, &Step)| match step {
        Step::Send { to, .. } if seen.insert(*to) => Some(at),
        _ => None,
    };
    let mut lasts: Vec<usize> = steps.iter().enumerate().rev().filter_map(sends_last).collect();
    lasts.reverse();
    lasts
}

/// Bytes of the blocks before that of this member.
fn before(shape: &Shape) -> u64 {
    let elements: u64 = match shape.counts.is_empty() {
        true => u64::from(shape.me) * shape.count,
        false => shape.counts[..shape.me as usize].iter().sum(),
    };
    elements * shape.element_bytes
}

/// Plans that are kept in one place.
const KEPT: usize = 16;

/// The plans that were used last, by what they depend on.
#[derive(Debug)]
pub(crate) struct Kept<K>(Vec<(K, Arc<Plan>)>);

impl<K> Default for Kept<K> {
    fn default() -> Kept<K> {
        Kept(Vec::new())
    }
}

impl<K: PartialEq> Kept<K> {
    /// The plan, kept or made.
    pub(crate) fn get(
        &mut self,
        key: K,
        make: impl FnOnce(&K) -> Result<Arc<Plan>>,
    ) -> Result<Arc<Plan>> {
        let plans = &mut self.0;
        if let Some(found) = plans.iter().position(|(known, _)| *known == key) {
            // The last ones used stand first.
            plans[..=found].rotate_right(1);
            return Ok(Arc::clone(&plans[0].1));
        }
        let plan = make(&key)?;
        plans.truncate(KEPT - 1);
        plans.insert(0, (key, Arc::clone(&plan)));
        Ok(plan)
    }
}
