//! Starting and preparing operations, for the numbers of the C layer and for owned values.

use std::sync::Arc;

use gaspi_core::{Error, GroupId, Result, Runtime, Timeout};

use crate::checked_request::{CheckedRequest, check_sizes};
use crate::engine::{Engine, Operation, Repeat};
use crate::exec::buffers::Buffers;
use crate::exec::completion::Completion;
use crate::exec::pack::PackBuffers;
use crate::plan::Plan;
use crate::request::Request;

/// What holds for the memory of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryTerms {
    /// Bytes of the send and of the receive memory; `None` if the caller promises enough of them.
    pub(crate) bytes: Option<[u64; 2]>,
    /// A failed operation ends only when no other member can access the memory.
    pub(crate) until_unused: bool,
}

impl MemoryTerms {
    /// Those of the C interface, where the program keeps the memory if an error asks for that.
    pub(crate) const OF_C: MemoryTerms = MemoryTerms { bytes: None, until_unused: false };

    /// Errors if an operation needs more memory than there is.
    fn check(self, plan: &Plan) -> Result<()> {
        let Some(bytes) = self.bytes else { return Ok(()) };
        for ((needed, there), what) in plan.own.into_iter().zip(bytes).zip(["send", "receive"]) {
            if needed > there {
                let reason = format!("the operation needs {needed} bytes of {what} memory");
                return Err(Error::Size { size: there, reason });
            }
        }
        Ok(())
    }

    /// The memory of a request, and what tells of its end.
    ///
    /// # Safety
    /// That of [`start`].
    unsafe fn take_in(
        self,
        call: &CheckedRequest<'_>,
        plan: &Plan,
        background: bool,
    ) -> Result<(Buffers<'static>, PackBuffers, Arc<Completion>)> {
        self.check(plan)?;
        let mut packed = PackBuffers::default();
        // SAFETY: the caller's promise; packed memory lives as long as the operation.
        let buffers = unsafe { call.buffers(plan, &mut packed) }?;
        let completion = self.completion(call.signature(plan), background);
        Ok((buffers, packed, Arc::new(completion)))
    }

    /// What tells of the end of an operation.
    pub(crate) fn completion(self, signature: u64, background: bool) -> Completion {
        let completion = Completion::new(signature, background);
        if self.until_unused { completion.until_unused() } else { completion }
    }
}

/// Starts an operation on the channel of the group.
///
/// # Errors
/// Those of [`run`](crate::run) that come from arguments, and [`Error::Timeout`] before the first
/// operation of the group.
///
/// # Safety
/// That of [`run`](crate::run), until the operation has ended.
pub(crate) unsafe fn start(
    rt: &Runtime,
    group: GroupId,
    request: &Request,
    terms: MemoryTerms,
    timeout: Timeout,
) -> Result<Operation> {
    let engine = Engine::of(rt);
    let context = engine.context(rt, group, timeout)?;
    let call = CheckedRequest::new(engine, request, &context.executor)?;
    let plan = call.cached_plan(engine, &context)?;
    // SAFETY: the caller's promise.
    let taken = unsafe { terms.take_in(&call, &plan, request.background) };
    let (buffers, mut packed, completion) = taken?;
    packed.pack();
    if request.background {
        engine.start_background_thread()?;
    }
    context.executor.start(&completion, &plan, &call.arithmetic(), buffers)?;
    engine.shared.notify_started(&context.executor, request.background);
    Ok(Operation::new(completion, Arc::clone(&context.executor), None, packed))
}

/// Prepares an operation, on a channel of its own.
///
/// # Errors
/// As [`start`].
///
/// # Safety
/// That of [`run`](crate::run), whenever the operation is active.
pub(crate) unsafe fn prepare(
    rt: &Runtime,
    group: GroupId,
    request: &Request,
    terms: MemoryTerms,
    timeout: Timeout,
) -> Result<Operation> {
    let engine = Engine::of(rt);
    check_sizes(request, rt.group_ranks(group)?.len())?;
    let executor = engine.open(rt, group, timeout)?;
    let prepared = (|| {
        let call = CheckedRequest::new(engine, request, &executor)?;
        let key = call.key();
        let plan = key.plan(&call.shape(&key), engine.preferred()?)?;
        // SAFETY: the caller's promise.
        let taken = unsafe { terms.take_in(&call, &plan, request.background) };
        let (buffers, packed, completion) = taken?;
        // SAFETY: the caller keeps its memory until the operation is freed, which owns packed one.
        let _shown = unsafe { buffers.show_to_device(&executor.channel) };
        let repeat = Repeat { plan, arithmetic: call.arithmetic(), buffers, _shown };
        Ok(Operation::new(completion, Arc::clone(&executor), Some(repeat), packed))
    })();
    if prepared.is_err() {
        engine.shared.close(&executor);
    }
    prepared
}
