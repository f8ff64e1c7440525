//! What a rank keeps for its collectives: an executor for each group and each prepared operation,
//! the table of handles, and the background thread.

mod background;
mod given_up;
mod group_context;
mod handles;
mod operation;

use gaspi_core::os::process;
use gaspi_core::sync::{Condvar, Mutex, RwLock};
use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gaspi_core::{
    Channel, ChannelSpec, Deadline, Error, Extension, GroupId, Result, Runtime, Timeout,
};

use crate::algorithms::Algorithm;
use crate::exec::active::ActiveExecutors;
use crate::exec::completion::Completion;
use crate::exec::executor::{Driver, Executor};
use crate::mode::Mode;
use crate::plan::cache::PlanCache;
use crate::plan::standard::StandardKey;
use handles::Handles;

use background::Work;
use given_up::AllGivenUp;
pub(crate) use given_up::{GivenUp, OperationGivenUp};
pub(crate) use group_context::GroupContext;
use group_context::{Contexts, LookupTable};
pub(crate) use operation::{FINISH_LIMIT, Operation, Repeat};

/// The variable that names the algorithm to prefer where it serves an operation.
const ALGORITHM: &str = "GASPI_COLL_ALGORITHM";
/// The variable that names the mode of operations that name none.
const MODE: &str = "GASPI_COLL_MODE";
/// Slots for messages between two members of a channel.
const SLOTS: u32 = 8;
/// Largest message, where there are few members.
const MESSAGE_BYTES: u64 = 512 << 10;
/// Smallest limit of a message.
const MESSAGE_BYTES_MIN: u64 = 4 << 10;
/// Memory of a rank for the messages of a channel.
const ROOM_BYTES: u64 = 64 << 20;
/// Bytes of staging for one arrival.
const STAGE_BYTES: u64 = 64 << 10;
/// How long a thread waits for members to open a channel before it drives active operations.
const OPENING_SLICE: Duration = Duration::from_millis(1);
/// The same while no operation is active.
const IDLE_SLICE: Duration = Duration::from_millis(50);

/// The layout of a channel between so many members: the same on all of them.
fn spec(members: usize, prepared: bool) -> ChannelSpec {
    let share = ROOM_BYTES / (members as u64 * u64::from(SLOTS));
    let message_bytes = share.next_power_of_two().clamp(MESSAGE_BYTES_MIN, MESSAGE_BYTES);
    // The two kinds differ, so that opening one never pairs with opening the other.
    let stage_bytes = if prepared { STAGE_BYTES + 64 } else { STAGE_BYTES };
    ChannelSpec { slots: SLOTS, message_bytes, stage_bytes }
}

/// What a variable names; `None` if it is not set.
fn named<T: FromStr<Err: fmt::Display>>(variable: &str) -> std::result::Result<Option<T>, String> {
    let Some(name) = std::env::var_os(variable) else { return Ok(None) };
    let parsed = name.to_string_lossy().parse().map(Some);
    parsed.map_err(|reason| format!("{variable}: {reason}"))
}

/// Whether the environment names an algorithm and a mode that there are, if any.
///
/// # Errors
/// [`Error::Environment`] names the variable, its value, and what there is.
pub fn check_environment() -> Result<()> {
    let wrong = |reason| Error::Environment { reason };
    named::<Algorithm>(ALGORITHM).map_err(wrong)?;
    named::<Mode>(MODE).map_err(wrong)?;
    Ok(())
}

/// Tells the program of what has ended, in the background.
pub(crate) trait TellsEnds: fmt::Debug + Send + Sync {
    fn tell_ends(&self);
    /// Warns of what does not end. Called now and then while the thread drives operations.
    fn look_for_stalls(&self);
}

/// The process that has made something. A forked child has copies of what is its parent's: it has
/// none of the threads, and no right to end anything that other ranks know of. Locks may be those
/// of threads that it has not.
#[derive(Debug)]
struct MadeBy {
    process: u32,
    forks: u32,
}

impl Default for MadeBy {
    fn default() -> MadeBy {
        MadeBy { process: std::process::id(), forks: process::forks() }
    }
}

/// What the threads of a rank share; owned values keep it beyond the [`Engine`].
#[derive(Debug, Default)]
pub(crate) struct Shared {
    contexts: RwLock<Contexts>,
    lookup: LookupTable,
    handles: Mutex<Handles>,
    work: Mutex<Work>,
    started: Condvar,
    /// Whether there is a background thread, and whether it rests.
    has_thread: AtomicBool,
    rests: AtomicBool,
    /// Waits of threads of the program, which drive all operations meanwhile: how many have begun,
    /// and how many of them have not ended.
    waits: AtomicU64,
    ending: AtomicBool,
    /// Groups for which a thread of this rank is opening a channel.
    opening: Mutex<HashSet<GroupId>>,
    /// Who tells the program of ends, and whether there is something to tell.
    tellers: Mutex<Vec<Weak<dyn TellsEnds>>>,
    has_ends: AtomicBool,
    given_up: AllGivenUp,
    /// Executors with active operations.
    pub(crate) active: Arc<ActiveExecutors>,
    made_by: MadeBy,
}

/// The collectives of one rank.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) shared: Arc<Shared>,
    background: Mutex<Option<JoinHandle<()>>>,
    /// Plans of the standard's all-reduces.
    pub(crate) standard_plans: Mutex<PlanCache<StandardKey>>,
    /// The value of GASPI_COLL_ALGORITHM.
    preferred: std::result::Result<Option<Algorithm>, String>,
    /// The value of GASPI_COLL_MODE.
    mode: std::result::Result<Option<Mode>, String>,
}

impl Extension for Engine {
    fn has_left(&self) {
        self.shared.active.give_turns_up();
        // Operations of the background, and those that were given up, may use segments.
        self.shared.active.find(|executor| {
            executor.end_all();
            None::<()>
        });
    }
}

impl Engine {
    fn new() -> Engine {
        Engine {
            shared: Arc::default(),
            background: Mutex::default(),
            standard_plans: Mutex::default(),
            preferred: named(ALGORITHM),
            mode: named(MODE),
        }
    }

    /// The algorithm that the environment prefers.
    ///
    /// # Errors
    /// [`Error::Environment`] if it names none that exists.
    pub(crate) fn preferred(&self) -> Result<Option<Algorithm>> {
        self.preferred.clone().map_err(|reason| Error::Environment { reason })
    }

    /// The mode of operations that name none.
    ///
    /// # Errors
    /// [`Error::Environment`] if the environment names none that exists.
    pub(crate) fn mode(&self) -> Result<Mode> {
        let mode = self.mode.clone().map_err(|reason| Error::Environment { reason })?;
        Ok(mode.unwrap_or_default())
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

    /// As [`open`](Engine::open). The caller is the only thread that opens a channel for this
    /// group.
    fn open_reserved(
        &self,
        rt: &Runtime,
        group: GroupId,
        prepared: bool,
        deadline: Deadline,
    ) -> Result<Arc<Executor>> {
        let members = rt.group_ranks(group)?.len();
        let open = |timeout: Timeout| rt.channel_open(group, spec(members, prepared), timeout);
        let channel = self.meet(rt, deadline, open).map_err(|error| match error {
            Error::Mismatch { group, difference } => {
                let difference = format!(
                    "{difference}; channels are opened by the first operation of a group, with \
                     more staging by each that is prepared"
                );
                Error::Mismatch { group, difference }
            }
            other => other,
        })?;
        Ok(self.shared.executor(channel))
    }

    /// Opens channels, and drives the operations of this rank meanwhile.
    ///
    /// # Errors
    /// Those of `open`, which is called again after its timeouts.
    pub(crate) fn meet<T>(
        &self,
        rt: &Runtime,
        deadline: Deadline,
        open: impl Fn(Timeout) -> Result<T>,
    ) -> Result<T> {
        let (began, mut wait) = (Instant::now(), None);
        loop {
            // Other members may wait for operations that this rank has started or is about to
            // start.
            let slice = deadline.at_most(match self.shared.active.operations() {
                0 => IDLE_SLICE,
                _ => OPENING_SLICE,
            });
            match open(remaining(slice)) {
                Err(error) if error.is_timeout() && slice != deadline && !deadline.passed() => {
                    let wait = wait.get_or_insert_with(|| rt.long_wait(began, deadline));
                    wait.tell_pending("a collective", || error);
                    self.shared.progress(Driver::Other, |_| true);
                    self.shared.look_around(|executor| executor.active() > 0);
                }
                opened => return opened,
            }
        }
    }
}

/// The time that is left, as a timeout.
pub(crate) fn remaining(deadline: Deadline) -> Timeout {
    match deadline {
        Deadline::Now => Timeout::Test,
        Deadline::Never => Timeout::Block,
        Deadline::At(_) => {
            let left = deadline.remaining().unwrap_or_default();
            Timeout::Millis(u64::try_from(left.as_millis()).unwrap_or(u64::MAX).max(1))
        }
    }
}

/// A guard that lets one thread at a time open a channel with the members of a group.
struct Opening<'a> {
    shared: &'a Shared,
    group: GroupId,
}

impl<'a> Opening<'a> {
    /// `None` while another thread holds it.
    fn begin(shared: &'a Shared, group: GroupId) -> Option<Opening<'a>> {
        shared.opening.lock().insert(group).then(|| Opening { shared, group })
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.shared.opening.lock().remove(&self.group);
    }
}

impl Shared {
    /// An executor on a channel.
    pub(crate) fn executor(&self, channel: Channel) -> Arc<Executor> {
        Executor::new(channel, Arc::clone(&self.active))
    }

    /// Waits on an executor until `ended` gives something, as [`Executor::wait_until`] does, and
    /// drives all others meanwhile.
    pub(crate) fn wait_until<T>(
        &self,
        executor: &Arc<Executor>,
        deadline: Deadline,
        ended: impl FnMut() -> Option<Result<T>>,
        pending: &impl Fn() -> Error,
    ) -> Result<T> {
        let _waiter = self.waiter(deadline);
        executor.wait_until(deadline, ended, pending, |around| {
            self.progress_others(executor);
            if around {
                self.look_around_others(executor);
            }
        })
    }

    /// Whether this process is a forked child: what it has of the rank is its parent's.
    pub(crate) fn is_of_parent(&self) -> bool {
        self.made_by.process != std::process::id()
    }

    /// To be called before anything else where a program begins, carries on or waits for something.
    /// Costs a load, and so knows only of children that were made by the C library's fork.
    ///
    /// # Errors
    /// [`Error::NotInitialised`]: this process is a forked child.
    #[inline]
    pub(crate) fn refuse_child(&self) -> Result<()> {
        let is_own = self.made_by.forks == process::known_forks();
        if is_own { Ok(()) } else { Err(Error::NotInitialised) }
    }

    /// Removes an executor on which no operation will be started any more.
    pub(crate) fn close(&self, executor: &Arc<Executor>) {
        self.active.remove(executor);
    }

    /// Drives the operations of all executors but this one.
    fn progress_others(&self, own: &Arc<Executor>) {
        if own.active() == self.active.operations() {
            return;
        }
        self.progress(Driver::Other, |executor| !Arc::ptr_eq(executor, own));
    }

    /// Checks the notices of all executors but this one.
    #[cold]
    fn look_around_others(&self, own: &Arc<Executor>) {
        self.look_around(|executor| executor.active() > 0 && !Arc::ptr_eq(executor, own));
    }

    /// Waits for an operation of an executor.
    pub(crate) fn wait(
        &self,
        executor: &Arc<Executor>,
        completion: &Completion,
        deadline: Deadline,
    ) -> Result<()> {
        let _waiter = self.waiter(deadline);
        executor.wait(completion, deadline, |around| {
            self.progress_others(executor);
            if around {
                self.look_around_others(executor);
            }
        })
    }

    fn progress(&self, driver: Driver, wanted: impl Fn(&Arc<Executor>) -> bool) {
        self.active.begin_next();
        self.active.find(|executor| {
            if executor.active() > 0 && wanted(executor) {
                executor.progress(driver);
            }
            None::<()>
        });
    }

    /// Checks the notices of these executors, as threads that wait do for their own.
    fn look_around(&self, wanted: impl Fn(&Arc<Executor>) -> bool) {
        self.active.find(|executor| {
            if wanted(executor) {
                executor.look_around();
            }
            None::<()>
        });
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Its executors know the list.
        self.active.clear();
    }
}
