//! What a device says by itself: its port goes down or comes back, it fails, receives run short;
//! and what its completion channel is to tell of.
//!
//! The progress thread hears it. While the port is down idle lanes go by streams; what is under way
//! on others is tried again by the device, so that a short cut costs nothing.
//!
//! The channel tells nothing while a thread looks, everything while one sleeps, and while nobody
//! does what somebody may wait for. A thread that looks takes from the channel what others sleep
//! for, so that whoever stops looking arms it again as long as there are such. Whoever arms it
//! looks once more then, since nobody tells of what has come before.

use super::device::Device;
use super::ended::{Again, Cause, Failure};
use super::lane::{Lane, LaneState};
use super::queue_pair::QueuePair;
use super::receives::Receives;
use super::{DeviceTable, Verbs};
use crate::ids::Rank;
use crate::sync::sleepers::Sleepers;
use crate::sync::{AtomicU8, AtomicU32, Mutex, Ordering};
use libibverbs_sys as sys;
use std::os::fd::BorrowedFd;

/// How often a thread that is about to rest looks, while something comes each time.
const LOOKS_AT_REST: usize = 8;
/// And one that handles all that has come. What comes meanwhile can wait: peers may never stop.
pub(super) const LOOKS_AT_ALL: usize = 128;

/// Why a pair ends that the device has given up.
const FATAL: &str = "this rank's device reports a failure of the queue pair";

/// Whether a device can carry requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Condition {
    Usable,
    /// Its port is down.
    Down,
    /// The port is up, but has no GID that pairs could have.
    WithoutGid,
    /// For good.
    Failed,
}

/// The [`Condition`] of a device, which any thread may look at.
#[derive(Debug)]
pub(super) struct DeviceCondition {
    now: AtomicU8,
    /// Of whoever takes an event, until that is noted where others may look for it.
    hearing: Mutex<()>,
}

impl DeviceCondition {
    /// As it is at first.
    pub(super) fn of(device: &Device) -> DeviceCondition {
        let active = device.handles.port.active;
        let now = if active { Condition::Usable } else { Condition::Down };
        DeviceCondition { now: AtomicU8::new(now as u8), hearing: Mutex::default() }
    }

    pub(super) fn is_usable(&self) -> bool {
        self.now.load(Ordering::Relaxed) == Condition::Usable as u8
    }

    pub(super) fn has_failed(&self) -> bool {
        self.now.load(Ordering::Relaxed) == Condition::Failed as u8
    }

    fn is_down(&self) -> bool {
        self.now.load(Ordering::Relaxed) == Condition::Down as u8
    }

    /// Whether something may come by it.
    pub(super) fn may_take_data(&self) -> bool {
        !self.is_down() && !self.has_failed()
    }

    /// Whether that is news. A device that has failed stays so.
    fn change(&self, to: Condition) -> bool {
        let news = |from| from != to as u8 && from != Condition::Failed as u8;
        let change = |from| news(from).then_some(to as u8);
        self.now.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).is_ok()
    }
}

/// Something that a device says.
#[derive(Debug, Clone, Copy)]
enum Event {
    PortDown,
    PortUp,
    GidChange,
    Failed,
    ReceivesLow,
    /// The queue pair of this number, which ends with it. The completions of what is under way
    /// tell that it has ended, not why.
    PairFailed(u32),
    Other,
}

impl Device {
    /// What is readable when the device says something.
    pub(super) fn events(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the context.
        unsafe { BorrowedFd::borrow_raw(self.handles.context.as_ref().async_fd) }
    }

    /// The next event, if there is one.
    fn take_event(&self) -> Option<Event> {
        let library = &self.handles.library;
        // SAFETY: a number and pointers, for which zeroes are valid.
        let mut event: sys::ibv_async_event = unsafe { std::mem::zeroed() };
        let context = self.handles.context.as_ptr();
        // SAFETY: the context is open, and its descriptor does not block.
        let result = unsafe { (library.ibv_get_async_event)(context, &raw mut event) };
        if result != 0 {
            return None;
        }
        let own_port = || {
            // SAFETY: events of ports have the number of one.
            unsafe { event.element.port_num == i32::from(self.handles.port.number) }
        };
        let found = match event.event_type {
            sys::IBV_EVENT_PORT_ERR if own_port() => Event::PortDown,
            sys::IBV_EVENT_PORT_ACTIVE if own_port() => Event::PortUp,
            sys::IBV_EVENT_GID_CHANGE if own_port() => Event::GidChange,
            // Without its queues it tells nothing any more.
            sys::IBV_EVENT_DEVICE_FATAL | sys::IBV_EVENT_CQ_ERR | sys::IBV_EVENT_SRQ_ERR => {
                Event::Failed
            }
            sys::IBV_EVENT_SRQ_LIMIT_REACHED => Event::ReceivesLow,
            // SAFETY: events of pairs have one, which is there until its event is given back.
            sys::IBV_EVENT_QP_FATAL => Event::PairFailed(unsafe { (*event.element.qp).qp_num }),
            _ => Event::Other,
        };
        // SAFETY: taken above, given back once.
        unsafe { (library.ibv_ack_async_event)(&raw mut event) };
        Some(found)
    }
}

impl DeviceTable {
    /// What is readable when the device says something by itself.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        self.device.events()
    }

    /// Why a request to `peer` has failed, and when another pair need not meet that.
    pub(super) fn failure_of(&self, peer: Rank, status: u32, vendor: u32) -> Failure {
        let mut reason = self.device.in_words(status, vendor);
        if status == sys::IBV_WC_RETRY_EXC_ERR {
            reason = self.with_place(peer, reason);
        }
        // Some devices fail requests at once then, others try them again.
        if self.condition.is_down() {
            reason = format!("this rank's port is down: {reason}");
        }
        let (again, cause) = match status {
            // The peer has used the pair before this side had proved it.
            sys::IBV_WC_WR_FLUSH_ERR => (Again::AtOnce, Cause::Flush),
            // As while the link is cut.
            sys::IBV_WC_RETRY_EXC_ERR => (Again::Later, Cause::Error),
            _ => (Again::NotByTime, Cause::Error),
        };
        Failure { reason, again, cause, is_stopped: false }
    }
}

impl Verbs<'_> {
    /// Does what the device's events ask for.
    pub(crate) fn heed_events(self) {
        self.heed_events_with(None);
    }

    /// The same with the lock of the receives, if the caller has it.
    pub(super) fn heed_events_with(self, mut receives: Option<&mut Receives>) {
        let (device, condition) = (self.table.device.description(), &self.table.condition);
        let forced = self.table.forced;
        while let Some(event) = self.next_event() {
            match event {
                Event::PortDown if condition.change(Condition::Down) => {
                    log::warn!(
                        "the port of {device} is down; {} until it is up again",
                        if forced { "requests wait" } else { "data goes by TCP" }
                    );
                    self.stop_using("this rank's port is down");
                }
                Event::PortUp => self.look_at_port(receives.as_deref_mut()),
                // The GIDs of a port that goes down change too.
                Event::GidChange if !condition.is_down() => {
                    self.look_at_port(receives.as_deref_mut());
                }
                Event::Failed => self.end_device(),
                Event::ReceivesLow => match &mut receives {
                    Some(receives) => receives.limit_reached(),
                    None => self.table.receives.lock().limit_reached(),
                },
                Event::PortDown | Event::GidChange | Event::PairFailed(_) | Event::Other => {}
            }
        }
    }

    /// The next event. A failure of a pair is noted: who finds no event behind it has that.
    fn next_event(self) -> Option<Event> {
        let _hearing = self.table.condition.hearing.lock();
        let event = self.table.device.take_event()?;
        if let Event::PairFailed(number) = event {
            self.pair_failed(number);
        }
        Some(event)
    }

    /// The device reports that a pair has failed, whose requests it flushes.
    fn pair_failed(self, number: u32) {
        let device = self.table.device.description();
        let Some(lane) = self.lane_of(number) else {
            return log::debug!("{device} reports a failure of a queue pair that is gone");
        };
        log::warn!("{device} reports a failure of the queue pair for {}", lane.peer);
        let mut state = lane.lock();
        if state.pair.as_ref().is_some_and(|pair| pair.number() == number) {
            state.note_fatal();
        }
        drop(state);
        self.table.has_stalled.store(true, Ordering::Release);
        self.stream.sets.wakeup.wake();
    }

    /// The port has come up, or its GIDs have changed: without one nothing goes by the device, and
    /// pairs may have lost theirs.
    fn look_at_port(self, receives: Option<&mut Receives>) {
        let (device, condition) = (self.table.device.description(), &self.table.condition);
        if let Err(reason) = self.table.device.handles.present_gid() {
            if condition.change(Condition::WithoutGid) {
                log::warn!(
                    "{reason}; {} until there is one",
                    if self.table.forced { "requests wait" } else { "data goes by TCP" }
                );
                self.stop_using("the GID of this rank's port is gone");
            }
            return;
        }
        let was_down = condition.is_down();
        if !condition.is_usable() {
            self.end_displaced(receives);
        }
        if condition.change(Condition::Usable) {
            let what = if was_down { "is up" } else { "has a GID" };
            log::info!("the port of {device} {what} again");
        }
        self.try_again();
        self.stream.connections.note_news();
        self.stream.sets.wakeup.wake();
    }

    /// The device carries nothing for now, and others do where they may.
    fn stop_using(self, why: &str) {
        // The next request of each lane looks anew which carrier it has.
        self.table.used(None).for_each(|lane| lane.lock().direct.take());
        self.leave_pairs(why);
    }

    /// Ends pairs whose GID is no more where they have it from, unless something is under way by
    /// them: the device may carry that nevertheless, and tells if not.
    fn end_displaced(self, receives: Option<&mut Receives>) {
        let (handles, mut any) = (&self.table.device.handles, false);
        for lane in self.table.used(None) {
            let mut state = lane.lock();
            let displaced = |pair: &QueuePair| !handles.is_in_place(pair.gid);
            if state.pair.as_ref().is_some_and(displaced) && state.has_ended_all() {
                state.note_failure("the GID of this rank's port has moved", Again::AtOnce);
                self.table.has_stalled.store(true, Ordering::Release);
                any = true;
            }
        }
        // Before anything is posted to them again.
        match receives {
            Some(receives) if any => _ = self.go_on(receives),
            None if any && !self.table.looks.handing_on.is_by_this_thread() => {
                self.poll_armed();
            }
            _ => {}
        }
    }

    /// The device has failed: so has what is under way on it, and what was made since it did so
    /// before. A pair that is being made is refused, so that what waits for it fails too.
    pub(super) fn end_device(self) {
        if self.table.condition.change(Condition::Failed) {
            log::warn!(
                "{} has failed; {}",
                self.table.device.description(),
                if self.table.forced { "requests fail" } else { "data goes by TCP from now on" }
            );
        }
        for lane in self.table.used(None) {
            let mut state = lane.lock();
            if state.pair.is_some() {
                state.note_failure("this rank's device has failed", Again::NotByTime);
                self.table.has_stalled.store(true, Ordering::Release);
            } else {
                self.abort_waiting(lane);
            }
        }
        self.stream.sets.wakeup.wake();
    }

    /// For the progress thread: handles all that has come. Where receives have run short, requests
    /// wait for room in a send queue, or a pair is being made, what changes that may complete a
    /// moment later, and nobody else may look. When it has to be called again though nothing wakes
    /// the thread, in nanoseconds of the clock.
    pub(crate) fn attend(self) -> Option<u64> {
        self.table.disarm();
        let next_ns = self.retry_messages();
        self.carry_connections();
        self.poll_for_a_while();
        let level = if self.has_to_look() {
            armed::FOR_ALL
        } else if self.table.device.carries_messages() {
            armed::FOR_MESSAGES
        } else {
            armed::NOT
        };
        self.table.arming.resting.store(level, Ordering::Relaxed);
        self.rest();
        next_ns
    }

    /// Handles what has come, as long as there is something, and not for ever.
    pub(super) fn poll_for_a_while(self) {
        let _all = (0..LOOKS_AT_ALL).all(|_| self.poll());
    }

    fn has_to_look(self) -> bool {
        let waits = |lane: &Lane| {
            let state = lane.lock();
            state.waits_for_room() || state.pairing.is_being_made() || lane.user.waits()
        };
        self.table.receives.lock().are_low() || self.table.used(None).any(waits)
    }

    /// Begins anew where there was no way.
    fn try_again(self) {
        self.table.troubles.lock().values_mut().for_each(|trouble| trouble.told = false);
        self.table.used(None).for_each(|lane| self.begin_anew(lane));
    }
}

impl LaneState {
    /// The device has reported that the pair has failed: that is why requests were flushed.
    fn note_fatal(&mut self) {
        match &mut self.failed {
            None => self.note_failure(FATAL, Again::NotByTime),
            Some(failure) if failure.cause == Cause::Flush => {
                let is_stopped = failure.is_stopped;
                *failure = Failure { is_stopped, ..Failure::new(FATAL, Again::NotByTime) };
            }
            Some(_) => {}
        }
    }
}

/// What the completion channel may have to say.
pub(super) mod armed {
    pub(in crate::transport::verbs) const NOT: u8 = 0;
    pub(in crate::transport::verbs) const FOR_MESSAGES: u8 = 1;
    pub(in crate::transport::verbs) const FOR_ALL: u8 = 2;
}

/// How the completion channel is [`armed`].
#[derive(Debug, Default)]
pub(super) struct Arming {
    pub(super) now: AtomicU8,
    /// While nobody looks.
    pub(super) resting: AtomicU8,
    sleepers: Sleepers<AtomicU32>,
}

impl Arming {
    /// What the channel has to say while nobody looks.
    fn at_rest(&self) -> u8 {
        if self.sleepers.are_any() { armed::FOR_ALL } else { self.resting.load(Ordering::Relaxed) }
    }
}

impl DeviceTable {
    /// The calling thread begins or ends to wait by sleeping.
    pub(crate) fn set_sleeping(&self, sleeping: bool) {
        if sleeping {
            self.arming.sleepers.begin();
        } else {
            self.arming.sleepers.end();
        }
    }

    /// Has the channel say when something comes from now on; the caller looks once more before it
    /// rests.
    fn arm(&self) {
        self.arming.now.store(armed::FOR_ALL, Ordering::SeqCst);
        self.device.arm();
    }

    /// Has the channel say when a message comes for which somebody may wait; in the same way.
    fn arm_for_messages(&self) {
        self.arming.now.fetch_max(armed::FOR_MESSAGES, Ordering::SeqCst);
        self.device.arm_for_messages();
    }

    /// After a sleep: what the channel has said is taken from it. It may speak long after it was
    /// armed, and nobody who sleeps beside it would rest.
    pub(crate) fn disarm(&self) {
        self.arming.now.store(armed::NOT, Ordering::SeqCst);
        self.device.drain_channel();
        // What another thread has armed it for meanwhile may have been taken: it is armed again
        // when this one looks no more.
        self.arming.now.store(armed::NOT, Ordering::SeqCst);
    }

    /// The same where the channel may say something at all.
    pub(crate) fn disarm_if_armed(&self) {
        if self.arming.now.load(Ordering::Relaxed) != armed::NOT {
            self.disarm();
        }
    }
}

impl Verbs<'_> {
    /// Nobody looks from now on: has the channel tell of what somebody waits for.
    pub(crate) fn rest(self) {
        for _ in 0..LOOKS_AT_REST {
            let level = self.table.arming.at_rest();
            // Still armed: whoever takes from the channel what it says looks, and rests later.
            if self.table.arming.now.load(Ordering::SeqCst) >= level {
                return;
            }
            if !self.arm_and_look(level) {
                return;
            }
        }
        // It comes faster than this thread, which may have other things to do.
        self.stream.sets.wakeup.wake();
    }

    /// Has the channel say when something comes from now on, for a thread that sleeps if there is
    /// nothing; whether there was.
    pub(crate) fn arm_for_sleep(self) -> bool {
        self.arm_and_look(armed::FOR_ALL)
    }

    /// Arms the channel and looks for what has come before, of which nobody tells; whether there
    /// was anything. A look may leave some of it, so that the channel does not count as armed then.
    fn arm_and_look(self, level: u8) -> bool {
        match level {
            armed::FOR_ALL => self.table.arm(),
            _ => self.table.arm_for_messages(),
        }
        let busy = self.poll_armed();
        if busy {
            self.table.arming.now.store(armed::NOT, Ordering::SeqCst);
        }
        busy
    }
}
