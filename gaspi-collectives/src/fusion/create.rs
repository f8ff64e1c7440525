//! Making a fused buffer: the ranks compare their declarations, then open the channels of all
//! buckets in one meeting. After a timeout the same call continues.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use gaspi_core::{
    Channel, ChannelSpec, DataSpec, Deadline, Error, GroupId, Rank, Result, Runtime, SharedData,
    Timeout, may_wait,
};

use super::bucket::{Bucket, BucketEnd};
use super::countdown::{CONTRIBUTIONS_MAX, Countdown};
use super::declaration::{self, HASH, TENSOR, TENSORS, WORDS, encode, tensor_in_text};
use super::ends::Ends;
use super::fused::Fused;
use super::handles::Fusions;
use super::layout::{BucketLayout, Layout};
use super::memory::BucketMemory;
use super::occupied::Occupied;
use super::stall::Stalls;
use super::submit;
use super::{Options, Tensor};
use crate::algorithms::Algorithm;
use crate::checked_request::CheckedRequest;
use crate::collective::Collective;
use crate::datatype::{DataType, Operation};
use crate::engine::Engine;
use crate::exec::buffers::Arithmetic;
use crate::exec::completion::Completion;
use crate::exec::executor::Executor;
use crate::kernel::Target;
use crate::mode::Mode;
use crate::plan::{Plan, TURN_BYTES_MIN};
use crate::procedures::run;
use crate::request::{Combination, Request};
use crate::signature::mix;

/// Stands where operations of the program have a root.
const COMPARISON: Rank = Rank(u16::MAX - 1);

/// Up to so many bytes buckets of ranks of one node have stages.
const STAGED_BYTES: u64 = 1 << 10;
/// Most bytes of a stage where an algorithm is asked for that uses stages.
const STAGE_BYTES_MAX: u64 = 64 << 10;
/// Limits of a message of a bucket, and of the messages between two ranks.
const MESSAGE_BYTES_MAX: u64 = 512 << 10;
const MESSAGE_BYTES_MIN: u64 = 256;
const SLOTS_MAX: u64 = 8;
/// Most bytes of the slots of all buckets: half of what a rank has for channels and fused buffers.
/// Where there would be more, messages are shorter, down to a length at which each costs more than
/// its data.
const ROOM_BYTES: u64 = 2 << 30;
const SHORTENED_BYTES_MIN: u64 = 4 << 10;

/// What a rank declares.
#[derive(Clone, Copy)]
struct Declaration<'a> {
    group: GroupId,
    tensors: &'a [Tensor],
    options: &'a Options,
}

/// A fused buffer that ranks are making.
#[derive(Debug)]
pub(crate) struct Creating {
    /// A hash of the arguments: a continued call has the same.
    arguments: u64,
    /// The [use](Runtime::group_use) of the group's id.
    group_use: u64,
    layout: Layout,
    mode: Mode,
    /// Hashes of the declaration up to each tensor.
    hashes: Vec<u64>,
    /// The first tensor that differs lies in this range, as far as is known.
    differs: Option<std::ops::Range<usize>>,
    /// What this rank tells, and what all have told.
    told: Box<[u64; WORDS]>,
    heard: Vec<u64>,
    /// All have declared the same.
    agreed: bool,
}

impl Declaration<'_> {
    /// A hash of it.
    fn arguments(&self) -> u64 {
        let encoded: Vec<u64> = self.tensors.iter().map(|tensor| encode(*tensor)).collect();
        let contributions = self.options.contributions.into();
        let mode = self.options.mode.map_or(0, |mode| 1 + mode as u64);
        let options = declaration::options_in_words(self.options, Mode::default());
        mix(&[mix(&encoded), mix(&options), contributions, mode])
    }

    /// What is left of a call that has timed out.
    ///
    /// # Errors
    /// [`Error::ActiveCollective`]: it had other arguments.
    fn former(&self, rt: &Runtime) -> Result<Option<Box<Creating>>> {
        let (group, group_use) = (self.group, rt.group_use(self.group)?);
        let mut creating = Fusions::of(rt).creating.lock();
        match creating.remove(&group) {
            Some(former) if former.group_use != group_use => {
                // Of a group that was deleted. Members may still write what they tell.
                std::mem::forget(former);
                Ok(None)
            }
            Some(former) if former.arguments != self.arguments() => {
                creating.insert(group, former);
                let active = "a fused buffer that is being made with other arguments".to_owned();
                Err(Error::ActiveCollective { group, active })
            }
            former => Ok(former),
        }
    }
}

fn check(tensors: &[Tensor], options: &Options) -> Result<()> {
    if tensors.is_empty() {
        let reason = "a fused buffer needs at least one tensor".to_owned();
        return Err(Error::Number { number: 0, reason });
    }
    let contributions = options.contributions;
    if !(1..=CONTRIBUTIONS_MAX).contains(&contributions) {
        let reason = format!("a tensor is submitted 1 to {CONTRIBUTIONS_MAX} times in a step");
        return Err(Error::Number { number: contributions.into(), reason });
    }
    let all = (tensors.len() as u64).checked_mul(contributions.into());
    if all.is_none_or(|all| u32::try_from(all).is_err()) {
        let reason = "so many tensors are more than a fused buffer can count".to_owned();
        return Err(Error::Number { number: tensors.len() as u64, reason });
    }
    if !matches!(
        options.operation,
        Operation::Sum | Operation::Average | Operation::Min | Operation::Max
    ) {
        let reason =
            format!("a fused buffer gives sum, average, min or max, not {}", options.operation);
        return Err(Error::Unsupported { reason });
    }
    if let Some(wire) = options.wire.filter(|wire| !matches!(wire, DataType::F16 | DataType::Bf16))
    {
        let reason = format!("tensors of f32 travel as f16 or bf16, not as {wire}");
        return Err(Error::Unsupported { reason });
    }
    Ok(())
}

impl Creating {
    fn new(rt: &Runtime, declared: Declaration<'_>, mode: Mode) -> Result<Creating> {
        let layout = Layout::new(declared.tensors, declared.options)?;
        let mut hash = 0;
        let hashes = declared.tensors.iter().map(|tensor| {
            hash = mix(&[hash, encode(*tensor)]);
            hash
        });
        Ok(Creating {
            arguments: declared.arguments(),
            group_use: rt.group_use(declared.group)?,
            layout,
            mode,
            hashes: hashes.collect(),
            differs: None,
            told: Box::new([0; WORDS]),
            heard: vec![0; WORDS * rt.group_ranks(declared.group)?.len()],
            agreed: false,
        })
    }

    /// The tensor that the next comparison is about: the last one first.
    fn probe(&self) -> usize {
        match &self.differs {
            None => self.hashes.len() - 1,
            Some(range) => range.start + (range.end - range.start - 1) / 2,
        }
    }

    /// Tells all ranks about a tensor, and hears what they tell.
    fn exchange(
        &mut self,
        rt: &Runtime,
        Declaration { group, tensors, options }: Declaration<'_>,
        deadline: Deadline,
    ) -> Result<()> {
        let probe = self.probe();
        let [packed, threshold, limit] = declaration::options_in_words(options, self.mode);
        let (tensor, tensors) = (encode(tensors[probe]), tensors.len() as u64);
        *self.told = [self.hashes[probe], tensor, tensors, packed, threshold, limit];
        let request = Request {
            collective: Collective::Allgather,
            send: self.told.as_ptr().cast(),
            receive: self.heard.as_mut_ptr().cast(),
            count: WORDS as u64,
            blocks: Vec::new(),
            combination: Combination::BuiltIn(DataType::U64, Operation::Sum),
            // Told apart from operations of the program, which give no root.
            root: COMPARISON,
            algorithm: None,
            mode: Some(Mode::Fast),
            background: false,
        };
        // SAFETY: both are of the lengths that the request says, and stay where they are until the
        // operation has ended: after a timeout they are kept with this.
        unsafe { run(rt, group, &request, crate::engine::remaining(deadline)) }
    }

    /// The words of each rank.
    fn words(&self) -> impl Iterator<Item = &[u64]> {
        self.heard.chunks_exact(WORDS)
    }

    fn all_alike(&self, word: usize) -> bool {
        self.words().all(|words| words[word] == self.heard[word])
    }

    /// The first rank whose word is another than that of the group's first.
    fn other(&self, word: usize) -> usize {
        self.words().position(|words| words[word] != self.heard[word]).unwrap_or(0)
    }

    /// Compares until all is known to be the same, or the first difference is found.
    fn compare(
        &mut self,
        rt: &Runtime,
        declared: Declaration<'_>,
        deadline: Deadline,
    ) -> Result<()> {
        let group = declared.group;
        let ranks = rt.group_ranks(group)?;
        let mismatch = |difference: String| Error::Mismatch { group, difference };
        while !self.agreed {
            self.exchange(rt, declared, deadline)?;
            let probe = self.probe();
            if let Some(found) = declaration::difference(&self.heard) {
                let (one, other, [a, b]) = (ranks[0], ranks[found.other], found.values);
                return Err(mismatch(format!(
                    "{one} asks for {} {a} of a fused buffer, {other} for {b}",
                    found.option
                )));
            }
            let shortest = self.words().map(|words| words[TENSORS]).min().unwrap_or(0) as usize;
            match self.differs.clone() {
                None if self.all_alike(HASH) && self.all_alike(TENSORS) => self.agreed = true,
                // The number of tensors may be the only difference.
                None => self.differs = Some(0..shortest),
                Some(range) if self.all_alike(HASH) && probe + 1 == range.end => {
                    let other = self.other(TENSORS);
                    let (a, b) = (self.heard[TENSORS], self.heard[WORDS * other + TENSORS]);
                    let (one, other) = (ranks[0], ranks[other]);
                    return Err(mismatch(format!(
                        "{one} declares {a} tensors, {other} {b}; all that both have are the same"
                    )));
                }
                Some(range) if range.len() == 1 && !self.all_alike(HASH) => {
                    let other = self.other(HASH);
                    let words = [self.heard[TENSOR], self.heard[WORDS * other + TENSOR]];
                    let [a, b] = words.map(tensor_in_text);
                    let (one, other) = (ranks[0], ranks[other]);
                    return Err(mismatch(format!(
                        "tensor {probe} of a fused buffer is {a} on {one}, and {b} on {other}"
                    )));
                }
                Some(range) if self.all_alike(HASH) => self.differs = Some(probe + 1..range.end),
                Some(range) => self.differs = Some(range.start..probe + 1),
            }
        }
        Ok(())
    }
}

/// The channel of a bucket within a node, without messages.
fn spec_of_node(bytes: u64, asked: Option<Algorithm>) -> ChannelSpec {
    let stage_bytes = match asked {
        Some(Algorithm::CopyInCopyOut | Algorithm::SlicedCopy) => bytes.min(STAGE_BYTES_MAX),
        _ if bytes <= STAGED_BYTES => bytes,
        _ => 0,
    };
    ChannelSpec { slots: 1, message_bytes: 64, stage_bytes }
}

/// The channel of a bucket by messages of at most so many bytes. It follows the bytes of the
/// bucket: so many travel between two ranks until the receiver has taken the first. Where members
/// may be folded there is room for the message that tells one that others have begun: the result
/// is not to wait until it has been taken.
fn spec_of_messages(bytes: u64, members: usize, limit: u64) -> ChannelSpec {
    let message_bytes = bytes.next_multiple_of(64).clamp(MESSAGE_BYTES_MIN, limit);
    let tells_of_begin = bytes >= TURN_BYTES_MIN && !members.is_power_of_two();
    let slots = (bytes / message_bytes).clamp(1, SLOTS_MAX) as u32 + u32::from(tells_of_begin);
    ChannelSpec { slots, message_bytes, stage_bytes: 0 }
}

/// The longest message of buckets of so many bytes, so that there is room for the slots between all
/// members. It follows from what all members know alike.
fn message_limit(buckets: impl Iterator<Item = u64> + Clone, members: usize) -> u64 {
    let ring = |bytes: u64, limit: u64| {
        let spec = spec_of_messages(bytes, members, limit);
        spec.message_bytes * u64::from(spec.slots)
    };
    let has_room = |limit: &u64| {
        let all: u64 = buckets.clone().map(|bytes| ring(bytes, *limit)).sum();
        // Slots that others send to, and those from which this rank sends.
        all.saturating_mul(2 * members as u64) <= ROOM_BYTES
    };
    let limits = std::iter::successors(Some(MESSAGE_BYTES_MAX), |limit| Some(limit / 2));
    let mut limits = limits.take_while(|limit| *limit >= SHORTENED_BYTES_MIN);
    limits.find(has_room).unwrap_or(SHORTENED_BYTES_MIN)
}

/// Makes a fused buffer.
///
/// # Errors
/// Those of [`Fusion::create`](super::Fusion::create).
pub(super) fn create(
    rt: &Runtime,
    tensors: &[Tensor],
    group: GroupId,
    options: &Options,
    timeout: Timeout,
) -> Result<Arc<Fused>> {
    let engine = Engine::of(rt);
    let deadline = timeout.deadline();
    engine.shared.refuse_child()?;
    check(tensors, options)?;
    may_wait(timeout, "making a fused buffer")?;
    engine.preferred()?;
    let usual = engine.mode()?;
    let mode = options.mode.unwrap_or(usual);
    let declared = Declaration { group, tensors, options };
    let mut creating = match declared.former(rt)? {
        Some(former) => former,
        None => Box::new(Creating::new(rt, declared, mode)?),
    };
    let made = creating
        .compare(rt, declared, deadline)
        .and_then(|()| open(rt, engine, declared, &creating.layout, deadline))
        .and_then(|opened| assemble(rt, declared, &creating.layout, opened));
    if made.as_ref().is_err_and(Error::is_timeout) {
        Fusions::of(rt).creating.lock().insert(group, creating);
    }
    if options.background && made.is_ok() {
        engine.start_background_thread()?;
    }
    made
}

/// Channels of all buckets, and their memory; none without buckets.
type Opened = (Vec<Channel>, Option<SharedData>);

fn open(
    rt: &Runtime,
    engine: &Engine,
    declared: Declaration<'_>,
    layout: &Layout,
    deadline: Deadline,
) -> Result<Opened> {
    if layout.buckets.is_empty() {
        return Ok((Vec::new(), None));
    }
    let group = declared.group;
    let asked = declared.options.algorithm.or(engine.preferred()?);
    let by_messages = !rt.group_is_one_node(group)?
        || asked.is_some_and(|algorithm| !algorithm.requires_one_node());
    let bytes = layout.buckets.iter().map(BucketLayout::bytes);
    let members = rt.group_ranks(group)?.len();
    let limit = message_limit(bytes.clone(), members);
    let spec = |bytes| match by_messages {
        true => spec_of_messages(bytes, members, limit),
        false => spec_of_node(bytes, asked),
    };
    let specs: Vec<_> = bytes.map(spec).collect();
    // `check` has found that the tensors can be counted so.
    let data = DataSpec { bytes: layout.bytes, status_words: declared.tensors.len() as u32 };
    let open = |timeout: Timeout| rt.channels_open(group, &specs, data, timeout);
    let (channels, data) = engine.meet(rt, deadline, open)?;
    Ok((channels, Some(data)))
}

/// What runs the all-reduces of a bucket: with its signature and its plan.
type Prepared = (Arc<Executor>, u64, Arc<Plan>, Arithmetic);

/// The plans of buckets, with their signatures: those that are alike share one.
#[derive(Default)]
struct Plans {
    /// By elements, type and root.
    made: HashMap<(u64, DataType, u32), (u64, Arc<Plan>)>,
    /// How many of the buckets are reduced along a tree.
    along_trees: u32,
}

impl Plans {
    /// The plan of the next bucket. The root of a tree does more than the others, so all members
    /// are it in turn.
    fn next(
        &mut self,
        engine: &Engine,
        call: CheckedRequest<'_>,
        bucket: &BucketLayout,
        members: u32,
    ) -> Result<(u64, Arc<Plan>)> {
        let first = self.with_root(engine, &call, bucket, 0)?;
        if !first.1.algorithm.has_any_root(Collective::Allreduce) {
            return Ok(first);
        }
        let root = self.along_trees % members;
        self.along_trees += 1;
        self.with_root(engine, &call.with_root(root), bucket, root)
    }

    fn with_root(
        &mut self,
        engine: &Engine,
        call: &CheckedRequest<'_>,
        bucket: &BucketLayout,
        root: u32,
    ) -> Result<(u64, Arc<Plan>)> {
        let kind = (bucket.elements, bucket.wire, root);
        if let Some((signature, plan)) = self.made.get(&kind) {
            return Ok((*signature, Arc::clone(plan)));
        }
        let key = call.key();
        let plan = key.plan_among_agreed(&call.shape(&key), engine.preferred()?)?;
        let signature = call.signature(&plan);
        self.made.insert(kind, (signature, Arc::clone(&plan)));
        Ok((signature, plan))
    }
}

/// Prepares the all-reduce of each bucket.
fn prepare(
    engine: &Engine,
    channels: Vec<Channel>,
    layout: &Layout,
    options: &Options,
) -> Result<Vec<Prepared>> {
    let mut plans = Plans::default();
    let mut prepared = Vec::with_capacity(channels.len());
    for (channel, bucket) in channels.into_iter().zip(&layout.buckets) {
        let members = channel.ranks().len() as u32;
        let executor = engine.shared.executor(channel);
        let request = request(bucket, options);
        let call = CheckedRequest::new(engine, &request, &executor)?;
        let arithmetic = call.arithmetic();
        let (signature, plan) = plans.next(engine, call, bucket, members)?;
        prepared.push((executor.clone(), signature, plan, arithmetic));
    }
    Ok(prepared)
}

/// Puts the fused buffer together.
fn assemble(
    rt: &Runtime,
    Declaration { group, tensors, options }: Declaration<'_>,
    layout: &Layout,
    (channels, data): Opened,
) -> Result<Arc<Fused>> {
    let engine = Engine::of(rt);
    let (shared, stalls) = (&engine.shared, Stalls::new(rt.stall_warning()));
    let prepared = prepare(engine, channels, layout, options)?;
    let memory = match &data {
        Some(data) => Target::of_shared(&data.own()),
        None => Target::of(&mut []),
    };
    let own = memory.source().start().addr();
    let mut records = submit::records((tensors, options), layout, own)?;
    let (own, occupied) = (own..own + memory.len(), Arc::<Occupied>::default());
    let fused = Arc::new_cyclic(|fused| {
        let buckets = prepared.into_iter().zip(&layout.buckets).enumerate();
        let buckets = buckets.map(|(index, ((executor, signature, plan, arithmetic), bucket))| {
            let end = BucketEnd { fused: fused.clone(), bucket: index };
            let completion =
                Completion::new(signature, options.background).with_hook(Arc::new(end));
            let contributions = options.contributions;
            Bucket {
                executor,
                completion: Arc::new(completion),
                plan,
                arithmetic,
                countdown: Countdown::new(bucket.tensors.len(), contributions),
                memory: BucketMemory::new((memory, &occupied), layout, index, contributions),
            }
        });
        let buckets: Box<[Bucket]> = buckets.collect();
        for record in &mut records {
            if let Some(bucket) = buckets.get(record.bucket) {
                record.add_up_at(&bucket.memory);
            }
        }
        Fused {
            group,
            turns: fused.clone(),
            shared: Arc::clone(shared),
            tensors: tensors.into(),
            options: options.clone(),
            ends: Ends::new(buckets.len()),
            layout: layout.clone(),
            buckets,
            waiting: AtomicUsize::new(0),
            data,
            stalls,
            records,
            own,
            occupied,
        }
    });
    Ok(fused)
}

/// The all-reduce of a bucket, in place.
fn request(bucket: &BucketLayout, options: &Options) -> Request {
    Request {
        collective: Collective::Allreduce,
        send: std::ptr::null(),
        receive: std::ptr::null_mut(),
        count: bucket.elements,
        blocks: Vec::new(),
        combination: Combination::BuiltIn(bucket.wire, options.operation),
        root: Rank(0),
        algorithm: options.algorithm,
        mode: options.mode,
        background: options.background,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_shorter_where_slots_for_all_members_would_not_fit() {
        let buckets = || (0..50).map(|nth: u64| (nth % 8 + 1) << 20);
        assert_eq!(message_limit(buckets(), 2), MESSAGE_BYTES_MAX);
        assert_eq!(message_limit(buckets(), 4), MESSAGE_BYTES_MAX);
        for members in [8, 16, 64, 256] {
            let limit = message_limit(buckets(), members);
            let specs = buckets().map(|bytes| spec_of_messages(bytes, members, limit));
            let all: u64 = specs.map(|spec| spec.message_bytes * u64::from(spec.slots)).sum();
            assert!(all * 2 * members as u64 <= ROOM_BYTES, "{members} members: {limit}");
            assert!(limit >= SHORTENED_BYTES_MIN);
        }
        assert_eq!(message_limit(buckets(), 1 << 16), SHORTENED_BYTES_MIN);
    }

    #[test]
    fn a_result_has_room_beside_the_message_that_tells_of_a_begin() {
        for bytes in [TURN_BYTES_MIN, 100 << 10, 1 << 20, 64 << 20] {
            let slots = [3, 4].map(|members| {
                let spec = spec_of_messages(bytes, members, MESSAGE_BYTES_MAX);
                u64::from(spec.slots)
            });
            let result = bytes.div_ceil(MESSAGE_BYTES_MAX).min(SLOTS_MAX);
            assert_eq!(slots, [result + 1, result], "{bytes} bytes of 3 and of 4 members");
        }
        // No message tells of shorter ones.
        assert_eq!(spec_of_messages(TURN_BYTES_MIN - 64, 3, MESSAGE_BYTES_MAX).slots, 1);
    }
}
