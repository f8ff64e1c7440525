//! What a rank keeps for its collectives: an executor for each group and each prepared operation, the
//! operations that have handles, and the thread that looks after them in the background.

mod background;
mod group_context;
mod handles;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use gaspi_core::{ChannelSpec, Deadline, Error, GroupId, Result, Runtime, Timeout};

use crate::algorithms::Algorithm;
use crate::exec::completion::Completion;
use crate::exec::executor::{Driver, Executor};
use crate::lock::{lock, read, write};
use crate::plan::cache::PlanCache;
use crate::plan::standard::StandardKey;
use handles::Handles;

pub(crate) use group_context::GroupContext;
use group_context::LookupTable;
pub(crate) use handles::{Entry, Prepared};

/// The variable that names the algorithm to prefer where it serves an operation.
const ALGORITHM: &str = "GASPI_COLL_ALGORITHM";
/// Messages between two members that may be under way on a channel.
const SLOTS: u32 = 8;
/// Bytes of a message at most, where there are few members.
const MESSAGE_BYTES: u64 = 512 << 10;
/// The least that a message can be limited to.
const MESSAGE_BYTES_MIN: u64 = 4 << 10;
/// Bytes of a channel's messages that a rank makes room for.
const ROOM_BYTES: u64 = 64 << 20;
/// Bytes that a member publishes with one arrival at most.
const STAGE_BYTES: u64 = 64 << 10;
/// How long a thread waits for members to open a channel before it looks after what was started.
const OPENING_SLICE: Duration = Duration::from_millis(1);
/// The same while nothing has been started.
const IDLE_SLICE: Duration = Duration::from_millis(50);

/// What a channel between so many members looks like: the same on all of them.
fn spec(members: usize, prepared: bool) -> ChannelSpec {
    let share = ROOM_BYTES / (members as u64 * u64::from(SLOTS));
    let message_bytes = share.next_power_of_two().clamp(MESSAGE_BYTES_MIN, MESSAGE_BYTES);
    // Not the same for both kinds, so that nobody takes one for the other.
    let stage_bytes = if prepared { STAGE_BYTES + 64 } else { STAGE_BYTES };
    ChannelSpec { slots: SLOTS, message_bytes, stage_bytes }
}

fn preferred() -> std::result::Result<Option<Algorithm>, String> {
    match std::env::var(ALGORITHM) {
        Err(_) => Ok(None),
        Ok(name) if name.is_empty() => Ok(None),
        Ok(name) => name.parse().map(Some).map_err(|reason| format!("{ALGORITHM}: {reason}")),
    }
}

#[derive(Debug, Default)]
struct Shared {
    contexts: RwLock<HashMap<GroupId, Arc<GroupContext>>>,
    lookup: LookupTable,
    executors: RwLock<Vec<Arc<Executor>>>,
    handles: Mutex<Handles>,
    /// Whether something has been started for the background since it looked last.
    work: Mutex<bool>,
    started: Condvar,
    ending: AtomicBool,
    /// Groups whose members a thread of this rank is waiting for, to open a channel.
    opening: Mutex<HashSet<GroupId>>,
    /// Operations that have not ended.
    active: Arc<AtomicUsize>,
}

/// The collectives of one rank.
#[derive(Debug)]
pub(crate) struct Engine {
    shared: Arc<Shared>,
    background: Mutex<Option<JoinHandle<()>>>,
    /// Plans of the standard's all-reduces.
    pub(crate) standard_plans: Mutex<PlanCache<StandardKey>>,
    /// What GASPI_COLL_ALGORITHM says.
    preferred: std::result::Result<Option<Algorithm>, String>,
    /// A forked child has no such thread.
    process: u32,
}

impl Engine {
    fn new() -> Engine {
        Engine {
            shared: Arc::default(),
            background: Mutex::default(),
            standard_plans: Mutex::default(),
            preferred: preferred(),
            process: std::process::id(),
        }
    }

    /// The algorithm that the environment prefers.
    ///
    /// # Errors
    /// [`Error::Environment`] if it names none that exists.
    pub(crate) fn preferred(&self) -> Result<Option<Algorithm>> {
        self.preferred.clone().map_err(|reason| Error::Environment { reason })
    }

    pub(crate) fn of(rt: &Runtime) -> &Engine {
        rt.extension(Engine::new)
    }

    /// Opens a channel with the members of a group, for a prepared operation.
    pub(crate) fn open(
        &self,
        rt: &Runtime,
        group: GroupId,
        timeout: Timeout,
    ) -> Result<Arc<Executor>> {
        let Some(_opening) = Opening::begin(&self.shared, group) else {
            let active = "the first collective of another thread".to_owned();
            return Err(Error::ActiveCollective { group, active });
        };
        self.open_reserved(rt, group, true, timeout.deadline())
    }

    /// As [`open`](Engine::open), by the only thread that does so for this group.
    fn open_reserved(
        &self,
        rt: &Runtime,
        group: GroupId,
        prepared: bool,
        deadline: Deadline,
    ) -> Result<Arc<Executor>> {
        let members = rt.group_ranks(group)?.len();
        let channel = loop {
            // Others may need what this rank has started, or another thread is to start, before
            // they can join in.
            let slice = deadline.at_most(match self.shared.active.load(Ordering::Relaxed) {
                0 => IDLE_SLICE,
                _ => OPENING_SLICE,
            });
            match rt.channel_open(group, spec(members, prepared), remaining(slice)) {
                Err(Error::Timeout { .. }) if slice != deadline && !deadline.passed() => {
                    self.shared.progress(Driver::Other, |_| true);
                    self.shared.look_around(|executor| executor.active() > 0);
                }
                Err(Error::Mismatch { group, difference }) => {
                    let difference = format!(
                        "{difference}; channels are opened by the first operation of a group, with \
                         more staging by each that is prepared"
                    );
                    return Err(Error::Mismatch { group, difference });
                }
                opened => break opened?,
            }
        };
        let executor = Arc::new(Executor::new(channel, Arc::clone(&self.shared.active)));
        let mut executors = write(&self.shared.executors);
        executors.push(Arc::clone(&executor));
        Ok(executor)
    }

    /// No operation will be started on it any more.
    pub(crate) fn close(&self, executor: &Arc<Executor>) {
        let mut executors = write(&self.shared.executors);
        executors.retain(|other| !Arc::ptr_eq(other, executor));
    }

    /// Carries on the operations of all executors but this one.
    pub(crate) fn progress_others(&self, own: &Arc<Executor>) {
        if own.active() == self.shared.active.load(Ordering::Relaxed) {
            return;
        }
        self.shared.progress(Driver::Other, |executor| !Arc::ptr_eq(executor, own));
    }

    /// Looks whether the operations of all executors but this one have failed elsewhere.
    #[cold]
    fn look_around_others(&self, own: &Arc<Executor>) {
        self.shared.look_around(|executor| executor.active() > 0 && !Arc::ptr_eq(executor, own));
    }

    /// Waits for an operation of an executor.
    pub(crate) fn wait(
        &self,
        executor: &Arc<Executor>,
        completion: &Completion,
        deadline: Deadline,
    ) -> Result<()> {
        executor.wait(completion, deadline, |around| {
            self.progress_others(executor);
            if around {
                self.look_around_others(executor);
            }
        })
    }
}

/// The time that is left, as a timeout.
fn remaining(deadline: Deadline) -> Timeout {
    match deadline {
        Deadline::Now => Timeout::Test,
        Deadline::Never => Timeout::Block,
        Deadline::At(_) => {
            let left = deadline.remaining().unwrap_or_default();
            Timeout::Millis(u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1))
        }
    }
}

/// The only thread that opens a channel with the members of a group.
struct Opening<'a> {
    shared: &'a Shared,
    group: GroupId,
}

impl<'a> Opening<'a> {
    /// `None` while there is another one.
    fn begin(shared: &'a Shared, group: GroupId) -> Option<Opening<'a>> {
        lock(&shared.opening).insert(group).then(|| Opening { shared, group })
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        lock(&self.shared.opening).remove(&self.group);
    }
}

impl Shared {
    fn progress(&self, driver: Driver, wanted: impl Fn(&Arc<Executor>) -> bool) {
        let executors = read(&self.executors);
        for executor in
            executors.iter().filter(|executor| executor.active() > 0 && wanted(executor))
        {
            executor.progress(driver);
        }
    }

    /// What threads that wait do for theirs now and then.
    fn look_around(&self, wanted: impl Fn(&Arc<Executor>) -> bool) {
        let executors = read(&self.executors);
        executors.iter().filter(|s| wanted(s)).for_each(|executor| executor.look_around());
    }
}
