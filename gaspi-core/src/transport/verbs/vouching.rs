//! What a device has taken is visible before news that comes otherwise than by this device.
//!
//! An acknowledgement says that the target's device has the data. What this device brings later
//! comes behind it: messages, notifications, results of reads. So a write to a rank can end with
//! the acknowledgement if the rank **vouches** for the rest: before it handles what a socket has
//! brought, its device reads from its memory, by a pair of the rank with itself, and no read passes
//! data that the device has taken before. It says so in each offer of a pair.
//!
//! Ranks of a node tell each other by shared memory. A rank vouches only while all of its node do,
//! by the same device.
//!
//! Invariant: a rank that has vouched handles nothing from another node while its device holds
//! back what was acknowledged before that came.

use super::device::Device;
use super::ended::Again;
use super::lane::{LaneState, Request};
use super::{DeviceTable, VISIBLE, Verbs};
use crate::config::{MessageCarrier, WriteEnd};
use crate::ids::Rank;
use crate::sync::{AtomicU64, Ordering};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// With fewer pairs a rank spares none for itself.
const PAIRS: u32 = 16;
/// How long its making may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// Looks at completions between two looks at what the device says by itself.
const LOOKS: u32 = 1024;

impl Device {
    /// Whether a pair of this rank with itself is worth it: where news comes by sockets as a rule
    /// a read behind the writes costs less.
    fn may_vouch(&self) -> bool {
        let wanted = self.write_end() == WriteEnd::Auto;
        wanted && self.messages() == MessageCarrier::Device && self.handles.budget.limit() >= PAIRS
    }

    /// A number that ranks of the node have in common where they use the same device; never 0.
    fn identity(&self) -> u64 {
        // The same in all processes of the library.
        let mut hasher = DefaultHasher::new();
        self.name().hash(&mut hasher);
        hasher.finish() | 1
    }
}

impl Verbs<'_> {
    /// Before this rank has joined: makes what it needs to vouch.
    pub(crate) fn prepare_to_vouch(self) {
        if !self.table.device.may_vouch() {
            return;
        }
        let until = Instant::now() + PATIENCE;
        self.read_own_memory(|| Instant::now() < until);
        let lane = self.table.lane(VISIBLE, self.up.ranks().me);
        if lane.lock().pairing.is_up() {
            self.table.device.vouches.store(true, Ordering::Relaxed);
            self.own_device().store(self.table.device.identity(), Ordering::Release);
        } else {
            log::debug!("writes to this rank end with a read: its device does not reach itself");
            self.reset_lane(lane, lane.lock(), false);
        }
    }

    fn own_device(&self) -> &AtomicU64 {
        &self.up.ranks().area.own_pairs().device
    }

    /// Whether an acknowledgement ends writes to this rank.
    pub(super) fn vouches(self) -> bool {
        let area = &self.up.ranks().area;
        let own = self.own_device().load(Ordering::Acquire);
        let same = |rank: &Rank| area.pairs(*rank).device.load(Ordering::Acquire) == own;
        own != 0 && area.locals().iter().all(same)
    }

    /// What the device has taken is visible when this returns, if this rank vouches for that. While
    /// the port is down the device takes nothing; what it says of that comes behind the data.
    pub(crate) fn make_visible(self) {
        if self.table.device.vouches.load(Ordering::Relaxed) && !self.read_own_memory(|| true) {
            self.read_again();
        }
    }

    /// The pair of this rank with itself has ended, and what it was to read with it: another one
    /// does. If there will be none this rank vouches no more.
    #[cold]
    fn read_again(self) {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            self.begin_anew(self.table.lane(VISIBLE, self.up.ranks().me));
            if self.read_own_memory(|| Instant::now() < until) {
                return;
            }
            std::thread::yield_now();
        }
        log::warn!("this rank's device does not reach itself any more; its pairs are made anew");
        self.table.end_vouching();
        self.own_device().store(0, Ordering::Release);
        // Writes by those that peers have end with an acknowledgement.
        for lane in self.table.used(None) {
            let mut state = lane.lock();
            if state.pair.is_some() {
                state.note_failure("the device does not reach its own rank", Again::AtOnce);
            }
        }
        self.table.has_stalled.store(true, Ordering::Release);
    }

    /// Has the device read from memory of this rank, behind all that it has taken, and waits for
    /// that as long as it works; false if it has not, for want of a pair.
    fn read_own_memory(self, waits: impl Fn() -> bool) -> bool {
        // Without a GID it may still take what comes by pairs that were made before.
        let usable = || self.table.condition.may_take_data();
        if !usable() {
            return true;
        }
        let lane = self.table.lane(VISIBLE, self.up.ranks().me);
        let mut state = lane.lock();
        if let Some(reason) = state.pairing.refused() {
            log::debug!("no pair of this rank with itself: {reason}");
            return false;
        }
        state.push(Request::Fence { run: None });
        let (begun, losses) = (state.begun(), state.counters.losses);
        if state.pairing.is_up() {
            self.pump(lane, state);
        } else {
            self.begin(lane, state);
        }
        let mut looks = 0;
        while usable() && waits() && lane.lock().has_before(begun) {
            self.poll();
            looks += 1;
            if looks % LOOKS == 0 {
                self.heed_events();
                std::thread::yield_now();
            }
        }
        !usable() || lane.lock().has_read(losses)
    }
}

impl LaneState {
    /// Whether what was to read, when there had been so many losses, has done so, now that it has
    /// ended. Else it was lost with its pair, also where another thread has made the next one.
    pub(super) fn has_read(&self, losses: u64) -> bool {
        self.pairing.is_up() && self.counters.losses == losses
    }
}

impl DeviceTable {
    /// This rank leaves, and hears no news that matters.
    pub(super) fn end_vouching(&self) {
        self.device.vouches.store(false, Ordering::Relaxed);
    }
}
