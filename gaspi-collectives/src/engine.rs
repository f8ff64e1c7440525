//! What a rank keeps for its collectives: a station for each group and each prepared operation, the
//! operations that have handles, and the thread that looks after them in the background.

use std::collections::{HashMap, HashSet};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use gaspi_core::os::process;
use gaspi_core::sync::epoch;
use gaspi_core::{ChannelSpec, Deadline, Error, GroupId, Inside, Result, Runtime, Timeout};

use crate::algorithms::Algorithm;
use crate::apart::Apart;
use crate::lines;
use crate::plan::{Kept, Plan, PlanKey};
use crate::station::{By, Operation, Station};
use crate::task::{Arithmetic, Buffers};

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
/// How long the background waits for news before it looks whether it still has something to do.
const BACKGROUND_LIMIT: Duration = Duration::from_millis(250);
/// How long a thread waits for members to open a channel before it looks after what was started.
const OPENING_SLICE: Duration = Duration::from_millis(1);
/// The same while nothing has been started.
const IDLE_SLICE: Duration = Duration::from_millis(50);
/// Ids that a group can have.
const GROUPS: usize = 1 << u8::BITS;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

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

/// The operations of a group that have no channel of their own.
#[derive(Debug)]
pub(crate) struct Desk {
    group_use: u64,
    pub(crate) station: Arc<Station>,
    /// Held by the thread that is in a blocking operation, which may have its own memory, where the
    /// program's does not suit.
    pub(crate) blocking: Mutex<Apart>,
    pub(crate) plans: Mutex<Kept<PlanKey>>,
}

/// An operation that has a handle.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) operation: Arc<Operation>,
    pub(crate) station: Arc<Station>,
    /// What it takes to start it again; `None` for one that runs once.
    pub(crate) prepared: Option<Prepared>,
    /// Its own memory, where the program's does not suit. Held while it is started and while its
    /// result is unpacked.
    pub(crate) apart: Mutex<Apart>,
    /// Whether there is a result to unpack.
    pub(crate) unpacks: bool,
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.operation.is_still_used() {
            let apart = self.apart.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(apart).abandon();
        }
    }
}

/// A prepared operation.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) plan: Arc<Plan>,
    pub(crate) arithmetic: Arithmetic,
    pub(crate) buffers: Buffers<'static>,
}

#[derive(Debug, Default)]
struct Handles {
    /// Generation and entry.
    slots: Vec<(u32, Option<Arc<Entry>>)>,
    free: Vec<usize>,
}

/// Desks by group, to be found without a lock: whoever follows a pointer is inside of an epoch, and
/// whoever lets go of a desk takes it away before and waits for the end of that epoch.
#[derive(Debug)]
struct Signs([AtomicPtr<Desk>; GROUPS]);

impl Default for Signs {
    fn default() -> Signs {
        Signs([const { AtomicPtr::new(ptr::null_mut()) }; GROUPS])
    }
}

#[derive(Debug, Default)]
struct Shared {
    desks: RwLock<HashMap<GroupId, Arc<Desk>>>,
    signs: Signs,
    stations: RwLock<Vec<Arc<Station>>>,
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
    pub(crate) lines: Mutex<Kept<lines::Key>>,
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
            lines: Mutex::default(),
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
    ) -> Result<Arc<Station>> {
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
    ) -> Result<Arc<Station>> {
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
                    self.shared.progress(By::Other, |_| true);
                    self.shared.look_around(|station| station.active() > 0);
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
        let station = Arc::new(Station::new(channel, Arc::clone(&self.shared.active)));
        let mut stations = self.shared.stations.write().unwrap_or_else(PoisonError::into_inner);
        stations.push(Arc::clone(&station));
        Ok(station)
    }

    /// No operation will be started on it any more.
    pub(crate) fn close(&self, station: &Arc<Station>) {
        let mut stations = self.shared.stations.write().unwrap_or_else(PoisonError::into_inner);
        stations.retain(|other| !Arc::ptr_eq(other, station));
    }

    /// The desk of a group, opened by the first operation on it, which waits for the other members.
    pub(crate) fn desk(&self, rt: &Runtime, group: GroupId, timeout: Timeout) -> Result<Arc<Desk>> {
        let group_use = rt.group_use(group)?;
        let known = || {
            let desks = self.shared.desks.read().unwrap_or_else(PoisonError::into_inner);
            desks.get(&group).filter(|desk| desk.group_use == group_use).cloned()
        };
        if let Some(desk) = known() {
            return Ok(desk);
        }
        // Another thread may be opening it.
        let deadline = timeout.deadline();
        let opening = rt.wait_for(group, deadline, || {
            self.shared.progress(By::Other, |_| true);
            Opening::begin(&self.shared, group)
        });
        let Some(_opening) = opening else {
            let pending = format!("another thread that opens a channel of {group}");
            return Err(Error::Timeout { pending });
        };
        if let Some(desk) = known() {
            return Ok(desk);
        }
        self.forget_former(rt);
        let station = self.open_reserved(rt, group, false, deadline)?;
        let desk = Arc::new(Desk {
            group_use,
            station,
            blocking: Mutex::default(),
            plans: Mutex::default(),
        });
        let mut desks = self.shared.desks.write().unwrap_or_else(PoisonError::into_inner);
        desks.insert(group, Arc::clone(&desk));
        let sign = Arc::as_ptr(&desk).cast_mut();
        // Release: the desk was made before; pairs with the Acquire in `desk_inside`.
        self.shared.signs.0[group.index()].store(sign, Ordering::Release);
        Ok(desk)
    }

    /// The desk of a committed group, if there is one.
    #[inline]
    pub(crate) fn desk_inside<'a>(inside: &'a Inside<'_>, group: GroupId) -> Option<&'a Desk> {
        let group_use = inside.runtime().group_use(group).ok()?;
        // Acquire: pairs with the Release in `desk`.
        let sign =
            Engine::of(inside.runtime()).shared.signs.0[group.index()].load(Ordering::Acquire);
        // SAFETY: it was found inside of the epoch, whose end `forget_former` waits for before it
        // lets go of the desk; the engine itself does not end during a call of its rank.
        let desk = unsafe { sign.as_ref() }?;
        (desk.group_use == group_use).then_some(desk)
    }

    /// Lets go of the desks of groups that have been deleted.
    fn forget_former(&self, rt: &Runtime) {
        let mut desks = self.shared.desks.write().unwrap_or_else(PoisonError::into_inner);
        let former = |group: &GroupId, desk: &mut Arc<Desk>| {
            rt.group_use(*group).ok() != Some(desk.group_use)
        };
        let former: Vec<(GroupId, Arc<Desk>)> = desks.extract_if(former).collect();
        for (group, desk) in &former {
            // Relaxed: ordered by `synchronize`.
            self.shared.signs.0[group.index()].store(ptr::null_mut(), Ordering::Relaxed);
            self.close(&desk.station);
        }
        drop(desks);
        if !former.is_empty() {
            epoch::synchronize();
        }
    }

    /// Carries on the operations of all stations but this one.
    pub(crate) fn progress_others(&self, own: &Arc<Station>) {
        if own.active() == self.shared.active.load(Ordering::Relaxed) {
            return;
        }
        self.shared.progress(By::Other, |station| !Arc::ptr_eq(station, own));
    }

    /// Looks whether the operations of all stations but this one have failed elsewhere.
    #[cold]
    fn look_around_others(&self, own: &Arc<Station>) {
        self.shared.look_around(|station| station.active() > 0 && !Arc::ptr_eq(station, own));
    }

    /// Waits for an operation of a station.
    pub(crate) fn wait(
        &self,
        station: &Arc<Station>,
        operation: &Operation,
        deadline: Deadline,
    ) -> Result<()> {
        station.wait(operation, deadline, |around| {
            self.progress_others(station);
            if around {
                self.look_around_others(station);
            }
        })
    }

    /// Gives an operation a handle.
    pub(crate) fn register(&self, entry: Entry) -> u64 {
        let mut handles = lock(&self.shared.handles);
        let index = handles.free.pop().unwrap_or_else(|| {
            handles.slots.push((0, None));
            handles.slots.len() - 1
        });
        let slot = &mut handles.slots[index];
        slot.0 = slot.0.wrapping_add(1).max(1);
        slot.1 = Some(Arc::new(entry));
        u64::from(slot.0) << 32 | index as u64
    }

    /// The operation of a handle.
    ///
    /// # Errors
    /// [`Error::InvalidOperation`] if there is none (any more).
    pub(crate) fn entry(&self, handle: u64) -> Result<Arc<Entry>> {
        let handles = lock(&self.shared.handles);
        let slot = handles.slots.get(handle as u32 as usize);
        let slot = slot.filter(|slot| u64::from(slot.0) == handle >> 32);
        slot.and_then(|slot| slot.1.clone()).ok_or_else(|| no_operation(handle))
    }

    /// Takes a handle back; `None` if another thread has done so.
    pub(crate) fn release(&self, handle: u64) -> Option<Arc<Entry>> {
        let mut handles = lock(&self.shared.handles);
        let index = handle as u32 as usize;
        let slot = handles.slots.get_mut(index)?;
        if u64::from(slot.0) != handle >> 32 {
            return None;
        }
        let entry = slot.1.take()?;
        handles.free.push(index);
        Some(entry)
    }

    /// Makes the thread for what is started for the background, unless it is there.
    ///
    /// # Errors
    /// [`Error::System`]: there can be none.
    pub(crate) fn prepare_to_tend(&self) -> Result<()> {
        let mut background = lock(&self.background);
        if background.is_none() {
            let shared = Arc::clone(&self.shared);
            // A thread inherits the mask of signals: none of the program's are delivered to it.
            let thread = process::with_signals_blocked(|| {
                std::thread::Builder::new()
                    .name("gaspi-collective".to_owned())
                    .spawn(move || shared.tend())
            });
            *background = Some(thread.map_err(|error| Error::System {
                call: "starting the thread for operations in the background".to_owned(),
                reason: error.to_string(),
            })?);
        }
        Ok(())
    }

    /// Has that thread carry on what was started on a station.
    pub(crate) fn tend(&self, station: &Station) {
        *lock(&self.shared.work) = true;
        self.shared.started.notify_one();
        // It may be waiting for something else.
        station.channel.rouse();
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

#[cold]
fn no_operation(handle: u64) -> Error {
    let reason = "there is none; it was waited for or freed already".to_owned();
    Error::InvalidOperation { handle, reason }
}

impl Shared {
    fn progress(&self, by: By, wanted: impl Fn(&Arc<Station>) -> bool) {
        let stations = self.stations.read().unwrap_or_else(PoisonError::into_inner);
        for station in stations.iter().filter(|station| station.active() > 0 && wanted(station)) {
            station.progress(by);
        }
    }

    /// What threads that wait do for theirs now and then.
    fn look_around(&self, wanted: impl Fn(&Arc<Station>) -> bool) {
        let stations = self.stations.read().unwrap_or_else(PoisonError::into_inner);
        stations.iter().filter(|s| wanted(s)).for_each(|station| station.look_around());
    }

    /// A station with operations for the background.
    fn tended(&self) -> Option<Arc<Station>> {
        let stations = self.stations.read().unwrap_or_else(PoisonError::into_inner);
        stations.iter().find(|station| station.has_background()).cloned()
    }

    /// What the background thread does.
    fn tend(&self) {
        while !self.ending.load(Ordering::Acquire) {
            let Some(station) = self.tended() else {
                let mut work = lock(&self.work);
                while !*work && !self.ending.load(Ordering::Acquire) {
                    work = self.started.wait(work).unwrap_or_else(PoisonError::into_inner);
                }
                *work = false;
                continue;
            };
            let limit = Deadline::Never.at_most(BACKGROUND_LIMIT);
            let ended = station.channel.wait_for(limit, || {
                self.progress(By::Background, |station| station.has_background());
                (!station.has_background() || self.ending.load(Ordering::Acquire)).then_some(())
            });
            if ended.is_none() {
                self.look_around(|station| station.has_background());
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let thread = lock(&self.background).take();
        if self.process != std::process::id() {
            // A forked child: the thread is the parent's.
            std::mem::forget(thread);
            return;
        }
        if let Some(thread) = thread {
            self.shared.ending.store(true, Ordering::Release);
            drop(lock(&self.shared.work));
            self.shared.started.notify_one();
            let station = self.shared.tended();
            if let Some(station) = station {
                station.channel.rouse();
            }
            // It ends within its limit; its panic would have been reported when it happened.
            let _ = thread.join();
        }
    }
}
