//! What a rank keeps for each group, found by a lock or, in an epoch, without one.

use gaspi_core::sync::Mutex;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use gaspi_core::sync::epoch;
use gaspi_core::{Error, FastPath, GroupId, Result, Runtime, Timeout, may_wait};

use super::{Engine, Opening, Operation};
use crate::exec::executor::{Driver, Executor};
use crate::exec::pack::PackBuffers;
use crate::plan::PlanKey;
use crate::plan::cache::PlanCache;

/// Number of possible group ids.
const GROUPS: usize = 1 << u8::BITS;

/// The executor of a group, shared by all operations that were not prepared.
#[derive(Debug)]
pub(crate) struct GroupContext {
    group_use: u64,
    pub(crate) executor: Arc<Executor>,
    /// Held by the thread that is in a blocking operation; the memory is for blocks that need
    /// packing.
    pub(crate) blocking: Mutex<PackBuffers>,
    pub(crate) plans: Mutex<PlanCache<PlanKey>>,
    /// The broadcast of a list that was interrupted by its timeout, and a hash of its arguments.
    /// Held by the thread that is in one.
    pub(crate) list: Mutex<Option<(u64, Operation)>>,
}

impl GroupContext {
    /// That no broadcast of a list is under way, nor has one timed out.
    ///
    /// # Errors
    /// [`Error::ActiveCollective`].
    pub(crate) fn check_no_list(&self, group: GroupId) -> Result<()> {
        match self.list.try_lock() {
            Some(interrupted) if interrupted.is_none() => Ok(()),
            _ => {
                let active = "a broadcast of a list".to_owned();
                Err(Error::ActiveCollective { group, active })
            }
        }
    }
}

/// Contexts by group.
#[derive(Debug)]
pub(super) struct Contexts([Option<Arc<GroupContext>>; GROUPS]);

impl Default for Contexts {
    fn default() -> Contexts {
        Contexts([const { None }; GROUPS])
    }
}

/// The same, found without a lock. A reader follows a pointer inside of an epoch. A
/// context is dropped after its pointer was removed and that epoch has ended.
#[derive(Debug)]
pub(super) struct LookupTable([AtomicPtr<GroupContext>; GROUPS]);

impl Default for LookupTable {
    fn default() -> LookupTable {
        LookupTable([const { AtomicPtr::new(ptr::null_mut()) }; GROUPS])
    }
}

impl Engine {
    /// The context of a group. The first operation opens it, which waits for the other members.
    pub(crate) fn context(
        &self,
        rt: &Runtime,
        group: GroupId,
        timeout: Timeout,
    ) -> Result<Arc<GroupContext>> {
        let group_use = rt.group_use(group)?;
        let known = || {
            let contexts = self.shared.contexts.read();
            let found = contexts.0[group.index()].as_ref();
            found.filter(|context| context.group_use == group_use).cloned()
        };
        if let Some(context) = known() {
            return Ok(context);
        }
        may_wait(timeout, "the first collective operation of a group")?;
        // Another thread may be opening it.
        let deadline = timeout.deadline();
        let opening = rt.wait_for(group, deadline, || {
            self.shared.progress(Driver::Other, |_| true);
            Opening::begin(&self.shared, group)
        });
        let Some(opening) = opening else {
            let pending = format!("another thread that opens a channel of {group}");
            return Err(Error::Timeout { pending });
        };
        if let Some(context) = known() {
            return Ok(context);
        }
        self.forget_former(rt);
        let executor = self.open_reserved(rt, group, false, deadline)?;
        let context = Arc::new(GroupContext {
            group_use,
            executor,
            blocking: Mutex::default(),
            plans: Mutex::default(),
            list: Mutex::default(),
        });
        let mut contexts = self.shared.contexts.write();
        contexts.0[group.index()] = Some(Arc::clone(&context));
        let pointer = Arc::as_ptr(&context).cast_mut();
        // Release: the context was made before; pairs with the Acquire in `known_context`.
        self.shared.lookup.0[group.index()].store(pointer, Ordering::Release);
        drop((contexts, opening));
        // Other threads may wait to open it.
        context.executor.channel.wake_waiters();
        Ok(context)
    }

    /// The context of a committed group, if it is open.
    #[inline]
    pub(crate) fn known_context<'a>(
        inside: &'a FastPath<'_>,
        group: GroupId,
    ) -> Option<&'a GroupContext> {
        let group_use = inside.runtime().group_use(group).ok()?;
        // Acquire: pairs with the Release in `context`.
        let pointer =
            Engine::of(inside.runtime()).shared.lookup.0[group.index()].load(Ordering::Acquire);
        // SAFETY: it was found inside of the epoch, whose end `forget_former` waits for before it
        // lets go of the context; the engine itself does not end during a call of its rank.
        let context = unsafe { pointer.as_ref() }?;
        (context.group_use == group_use).then_some(context)
    }

    /// Drops the contexts of groups that have been deleted.
    fn forget_former(&self, rt: &Runtime) {
        let mut contexts = self.shared.contexts.write();
        let mut former = Vec::new();
        for (group, place) in (0..=u8::MAX).map(GroupId).zip(&mut contexts.0) {
            let is_former = |context: &mut Arc<GroupContext>| {
                rt.group_use(group).ok() != Some(context.group_use)
            };
            let Some(context) = place.take_if(is_former) else { continue };
            // Relaxed: ordered by `synchronize`.
            self.shared.lookup.0[group.index()].store(ptr::null_mut(), Ordering::Relaxed);
            self.shared.close(&context.executor);
            former.push(context);
        }
        drop(contexts);
        if !former.is_empty() {
            epoch::synchronize();
        }
    }
}
