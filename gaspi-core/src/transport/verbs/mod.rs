//! What a device carries between nodes: puts, gets and notifications of queues, by libibverbs.
//!
//! It rides on the streams, which stay the way of control, of liveness, and of all that it does not
//! carry. Each lane, a queue and a peer, gets a pair of its own at its first request, which waits
//! until that is up. Data is written and read by the devices; a notification is a message behind
//! the data, and whoever empties the receive queue sets it, as for a frame of a stream.
//!
//! Invariant: memory that a device knows is released before the delete of its segment returns,
//! behind all requests of this rank that use it.

mod atomic_calls;
mod atomics;
mod budget;
mod by_number;
mod byte_stream;
mod chain;
mod completions;
mod continuing;
mod data_ahead;
mod device;
mod device_bytes;
mod diagnostics;
mod direct;
mod divert;
mod ended;
mod events;
mod finish;
mod going_back;
mod guests;
mod kept;
mod lane;
mod lane_bias;
mod lists;
mod lone_run;
mod memory;
mod message_look;
mod message_way;
mod opened;
mod pairing;
mod pairs;
mod port;
mod port_rows;
mod post;
mod queue_lanes;
mod queue_pair;
mod received;
mod receives;
mod retries;
#[cfg(test)]
mod scale_tests;
mod select;
mod sharing;
mod shown;
mod socket_looks;
mod subnet;
#[cfg(test)]
pub(crate) mod told_tests;
mod unfinished;
mod vouching;
mod work;

use crate::config::{CHANNELS, Network, QUEUE_MAX};
use crate::error::{Error, Result};
use crate::ids::{QueueId, Rank};
use crate::os::cancel;
use crate::os::clock::monotonic_ns;
use crate::sync::once_arc::OnceArc;
use crate::sync::{AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering, epoch};
use crate::transport::payload::Payload;
use crate::transport::posted_receives::PostedReceives;
use crate::transport::requests::{GetTarget, PendingRequests};
use crate::transport::tcp::endpoint_table::EndpointTable;
use crate::transport::{Behind, Carried, Upcalls};
use crate::wire::message::{Put, RemoteAddress, Stream};
use by_number::ByNumber;
use divert::Diverted;
use ended::Ended;
use events::{Arming, DeviceCondition, armed};
use lane::{Lane, LaneState, Request};
use queue_lanes::QueueLanes;
use receives::Receives;
use socket_looks::Looks;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use work::{Completion, Completions, Outcome};

pub(crate) use atomics::AtomicReach;
pub(crate) use device::Device;
pub use diagnostics::rdma_checks;
pub(crate) use direct::{DirectCounts, DirectLane, Refused};
pub(crate) use lone_run::LoneRun;
pub(crate) use opened::{Wishes, inspect, networks};
pub(crate) use select::{NoDevice, Place};
pub(crate) use subnet::{Favoured, favoured};
pub(crate) use work::{Local, Remote};

/// Peers whose connection was lost, or that have ended: whoever looks next takes pairs down.
#[derive(Debug, Default)]
struct Resets {
    peers: Mutex<Vec<Rank>>,
    any: AtomicBool,
    /// The news of deaths behind which no pair with a dead rank is left.
    deaths: AtomicU32,
}

/// Why pairs with a peer ended last, and whether somebody was told that there are none.
#[derive(Debug, Default)]
struct Trouble {
    reason: String,
    told: bool,
    /// Where the peer's port is in another network than this rank's.
    elsewhere: Option<String>,
}

/// The lane of the bytes of connections. Channels have none of their own: they go by connections.
const STREAM: QueueId = CHANNELS;

/// The lane of atomic operations, where devices execute them.
const ATOMICS: QueueId = QueueId(CHANNELS.0 + 1);

/// The lane of this rank with itself by which what its device has taken is made visible.
const VISIBLE: QueueId = QueueId(ATOMICS.0 + 1);

// Numbers of requests tell all lanes apart.
const _: () = assert!(VISIBLE.0 < 1 << by_number::QUEUE_BITS);

/// The lanes of a queue, by rank.
type Lanes = Box<[OnceArc<Lane>]>;

/// The device of a rank, and what it carries.
#[derive(Debug)]
pub(crate) struct DeviceTable {
    /// Ends last: everything else belongs to it.
    receives: Mutex<Receives>,
    lanes: [OnceArc<Lanes>; VISIBLE.0 as usize + 1],
    /// Whose a queue pair is, by its number.
    by_number: ByNumber,
    ranks: u32,
    /// Whether nothing may go by streams that can go by the device.
    pub(crate) forced: bool,
    resets: Resets,
    condition: DeviceCondition,
    /// Whether a lane has something waiting that nobody has looked at.
    has_stalled: Arc<AtomicBool>,
    /// Why pairs with a peer ended last.
    troubles: Mutex<HashMap<Rank, Trouble>>,
    requests: Arc<PendingRequests>,
    posted_receives: Arc<PostedReceives>,
    /// What threads find of the lanes of a queue without locks.
    of_queues: [OnceArc<QueueLanes>; QUEUE_MAX as usize],
    arming: Arming,
    looks: Looks,
    device: Device,
}

impl DeviceTable {
    /// Uses a device that has been opened.
    ///
    /// # Errors
    /// In words, why it cannot be used.
    pub(crate) fn new(
        device: Device,
        forced: bool,
        ranks: u32,
        requests: Arc<PendingRequests>,
        posted_receives: Arc<PostedReceives>,
    ) -> std::result::Result<DeviceTable, String> {
        let receives = Receives::new(&device, device.handles.limits.receives)?;
        Ok(DeviceTable {
            receives: Mutex::new(receives),
            lanes: [const { OnceArc::new() }; VISIBLE.0 as usize + 1],
            by_number: ByNumber::default(),
            ranks,
            forced,
            resets: Resets::default(),
            condition: DeviceCondition::of(&device),
            has_stalled: Arc::default(),
            troubles: Mutex::default(),
            requests,
            posted_receives,
            of_queues: [const { OnceArc::new() }; QUEUE_MAX as usize],
            arming: Arming::default(),
            looks: Looks::default(),
            device,
        })
    }

    /// What the device's port is on.
    pub(crate) fn network(&self) -> Network {
        self.device.network()
    }

    /// What is readable when something has come since it was armed.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.device.channel()
    }

    fn place(&self, queue: QueueId, peer: Rank) -> &OnceArc<Lane> {
        let none = || Arc::new((0..self.ranks).map(|_| OnceArc::new()).collect());
        &self.lanes[queue.index()].get_or_init(none)[peer.index()]
    }

    fn lane(&self, queue: QueueId, peer: Rank) -> &Lane {
        let place = self.place(queue, peer);
        place.get().unwrap_or_else(|| self.make_lane(place, queue, peer))
    }

    /// The lanes that have been used, of one queue or of all.
    fn used(&self, queue: Option<QueueId>) -> impl Iterator<Item = &Lane> {
        let of = match queue {
            Some(queue) => std::slice::from_ref(&self.lanes[queue.index()]),
            None => &self.lanes[..],
        };
        let lanes = of.iter().filter_map(OnceArc::get);
        lanes.flat_map(|lanes| lanes.iter().filter_map(OnceArc::get))
    }

    fn used_with(&self, peer: Rank) -> impl Iterator<Item = &Lane> {
        let lanes = self.lanes.iter().filter_map(OnceArc::get);
        lanes.filter_map(move |lanes| lanes.get(peer.index())?.get())
    }
}

/// A device, with what its rank has above it and beside it.
#[derive(Clone, Copy)]
pub(crate) struct Verbs<'a> {
    pub(crate) table: &'a DeviceTable,
    pub(crate) up: &'a dyn Upcalls,
    /// Where pairs are settled.
    pub(crate) stream: &'a EndpointTable,
}

/// Posting.
impl Verbs<'_> {
    /// Whether the next request of an idle lane is to be posted here: where there is no pair yet
    /// one is begun, and requests go by streams meanwhile unless that is not wanted. While the peer
    /// has not said that its end of a broken pair is gone, nothing goes by any carrier.
    pub(crate) fn carries(self, queue: QueueId, peer: Rank) -> bool {
        if queue == STREAM {
            return false;
        }
        let (lane, state, route) = self.carrier_of(self.table.lane(queue, peer));
        drop(route);
        let usable = self.table.condition.is_usable() || self.table.forced;
        if state.pairing.is_up() && usable || state.pairing.is_ending() {
            return true;
        }
        if usable {
            self.begin(lane, state);
        }
        self.table.forced
    }

    /// Whether the next request of an idle lane is to be posted here though the device does not
    /// carry it.
    pub(crate) fn holds(self, queue: QueueId, peer: Rank) -> bool {
        let lanes = self.table.lanes.get(queue.index()).filter(|_| queue != STREAM);
        let lane = lanes.and_then(OnceArc::get).and_then(|lanes| lanes[peer.index()].get());
        let is_ending = |lane| self.carrier_of(lane).1.pairing.is_ending();
        self.table.forced || lane.is_some_and(is_ending)
    }

    /// Begins to make a lane's pair, unless one was refused lately; what waits is lost if it fails.
    fn begin(self, lane: &Lane, mut state: MutexGuard<'_, LaneState>) {
        let steps = state.pairing.begin_by_time(monotonic_ns);
        let mut ended = Ended::default();
        self.carry_out(lane, &mut state, steps, &mut ended);
        drop(state);
        self.speak(lane);
        ended.tell(self.up, lane.peer);
    }

    /// Posts a put, to the device, or else to the stream behind what the device has.
    ///
    /// # Errors
    /// The peer cannot be reached; the put has not been posted.
    pub(crate) fn put(self, peer: Rank, put: Put, payload: Option<Payload>) -> Result<()> {
        let remote = self.remote(peer, put.remote)?;
        let data = match payload.as_ref().filter(|_| put.size > 0) {
            Some(payload) => {
                let place = payload.place().filter(|(segment, _)| self.table.can_use(segment));
                let local = place.map(|(segment, offset)| DeviceTable::local(segment, offset));
                local.zip(remote).map(Some)
            }
            None => remote.map(|_| None),
        };
        let request = data.map(|data| Request::Put { put, data });
        self.push(peer, put.stream.queue, request, || Diverted::Put(put, payload))
    }

    /// Posts a get.
    ///
    /// # Errors
    /// As [`put`](Verbs::put).
    pub(crate) fn get(
        self,
        peer: Rank,
        stream: Stream,
        place: RemoteAddress,
        target: GetTarget,
    ) -> Result<()> {
        let remote = self.remote(peer, place)?;
        let usable = target.size == 0 || self.table.can_use(&target.segment);
        let local = DeviceTable::local(&target.segment, target.offset);
        let (size, notify) = (target.size, target.notify.clone());
        let request = remote.filter(|_| usable);
        let request = request.map(|remote| Request::Get { stream, local, remote, size, notify });
        self.push(peer, stream.queue, request, || Diverted::Get(stream, place, target))
    }

    fn refused(self, peer: Rank, reason: &str) -> Error {
        self.up.ranks().refused(peer, reason.to_owned())
    }

    /// Puts a request behind the others of its lane; none if the device cannot carry it, which then
    /// goes by the stream unless that is not wanted.
    fn push(
        self,
        peer: Rank,
        queue: QueueId,
        request: Option<Request>,
        diverted: impl FnOnce() -> Diverted,
    ) -> Result<()> {
        let own = self.table.lane(queue, peer);
        let (lane, mut state, route) = self.carrier_of(own);
        // With the lock: what is pushed before the peer's end is known is taken down behind it.
        self.up.ranks().check_alive(peer, "a request to it")?;
        // What was lost shows before a new pair can be used.
        if self.up.is_stale(peer, Behind::Queue(queue)) {
            let why = self.table.last_error(peer).unwrap_or_default();
            return Err(self.refused(peer, &format!("the pair of {queue} broke: {why}")));
        }
        let forced = self.table.forced;
        if !forced && self.is_handed_over(peer, queue) {
            drop((state, route));
            self.post_to_stream(peer, diverted());
            return Ok(());
        }
        let up = state.pairing.is_up();
        let request = match request {
            Some(request) if forced || up && !state.is_diverted() => request,
            None if forced => {
                return Err(self.refused(peer, &diverted().refusal()));
            }
            _ => {
                state.push_diverted(lane.queue, diverted());
                drop(route);
                self.pump(lane, state);
                return Ok(());
            }
        };
        if let Some(reason) = state.pairing.refused().filter(|_| state.pair.is_none()) {
            return Err(self.refused(peer, reason));
        }
        match &request {
            Request::Put { put, .. } => {
                self.table.note_unfinished(queue, peer);
                self.up.carried(peer, true, Carried::Written(put.size));
            }
            Request::Get { size, .. } => {
                self.up.carried(peer, true, Carried::Read(*size));
            }
            _ => {}
        }
        state.push(request);
        drop(route);
        if !up {
            self.begin(lane, state);
        } else if !own.gathers(&state) {
            self.pump(lane, state);
        }
        Ok(())
    }

    /// Posts what waits, here or by the stream; takes the pair down where that fails.
    fn pump(self, lane: &Lane, mut state: MutexGuard<'_, LaneState>) {
        if !state.has_waiting() {
            return;
        }
        if let Err(reason) = state.pump() {
            return self.fail(state, &reason);
        }
        if state.may_divert() {
            return self.divert(lane, state);
        }
        if state.has_waiting() {
            drop(state);
            self.call_progress();
        }
    }

    /// The program may compute now: the progress thread goes on with what waits. It looks at once,
    /// since what has completed before the channel was armed is told by nobody.
    #[cold]
    pub(crate) fn call_progress(self) {
        if self.table.arming.now.swap(armed::FOR_ALL, Ordering::SeqCst) != armed::FOR_ALL {
            self.table.device.arm();
            self.stream.sets.wakeup.wake();
        }
    }
}

impl DeviceTable {
    /// Whether no request to `peer` is under way.
    pub(crate) fn has_none(&self, peer: Rank) -> bool {
        self.used_with(peer).all(|lane| lane.lock().has_no_request())
    }

    /// Whether a pair with `peer` is up.
    pub(crate) fn reaches(&self, peer: Rank) -> bool {
        self.used_with(peer).any(|lane| lane.lock().pairing.is_up())
    }

    /// Whether the sockets are to be looked at again.
    pub(crate) fn sockets_are_due(&self, now_ns: u64) -> bool {
        self.looks.sockets.are_due(now_ns)
    }

    /// They were looked at, and there was something or not.
    pub(crate) fn note_socket_look(&self, began_ns: u64, ended_ns: u64, busy: bool) {
        let brings_news = busy || !self.device.carries_messages();
        self.looks.sockets.note(began_ns, ended_ns, brings_news);
    }
}

/// Looking.
impl<'a> Verbs<'a> {
    /// Handles what has completed and what has come; whether there was anything. No system call.
    pub(crate) fn poll(self) -> bool {
        self.table.receives.try_lock().is_some_and(|receives| self.poll_with(receives))
    }

    /// The same after the channel was armed: also where another thread has just looked.
    pub(crate) fn poll_armed(self) -> bool {
        self.poll_with(self.table.receives.lock())
    }

    fn poll_with(self, mut receives: MutexGuard<'_, Receives>) -> bool {
        let _handling = epoch::handling();
        let mut busy = self.look_at_sent();
        let mut completions = Completions::none();
        self.table.device.poll_received(&mut completions);
        for completion in completions.iter() {
            busy = true;
            self.received(&mut receives, &completion);
        }
        if self.table.device.take_blindness() {
            self.end_device();
        }
        if take(&self.table.has_stalled) {
            busy |= self.go_on(&mut receives);
        }
        if self.table.device.handles.budget.take_news() {
            self.try_scarce();
            busy = true;
        }
        let due = receives.busy_looks.note(busy);
        if due && take(&self.table.resets.any) {
            let _uncancelled = cancel::hold_off();
            let resets = std::mem::take(&mut *self.table.resets.peers.lock());
            for peer in &resets {
                self.stop_lost(*peer);
            }
            // All that has come before is handled.
            self.drain(&mut receives);
            resets.into_iter().for_each(|peer| self.reset(peer, true));
            self.feed_parked(&mut receives);
            busy = true;
        }
        if due {
            busy |= self.reset_ended();
        }
        if busy {
            self.end_of_bytes(&mut receives);
            self.refill(&mut receives);
            self.up.ranks().wake_own();
        }
        busy
    }

    /// Takes down pairs that have failed, behind what has come by them, and posts what waits on
    /// other lanes; whether any had failed.
    fn go_on(self, receives: &mut Receives) -> bool {
        let _uncancelled = cancel::hold_off();
        let mut failed = Vec::new();
        for lane in self.table.used(None) {
            let mut state = lane.lock();
            if state.stop_failed() {
                failed.push(lane);
            } else if self.table.forced && state.lacks_pair() && state.has_waiting() {
                drop(state);
                self.settle_waiting(lane);
            } else {
                self.pump(lane, state);
            }
        }
        if failed.is_empty() {
            return false;
        }
        self.drain(receives);
        for lane in failed {
            self.prepare_to_go_back(receives, lane);
            self.end_failed(lane);
        }
        true
    }

    /// Handles all messages that have come by now.
    pub(crate) fn catch_up(self) {
        let mut receives = self.table.receives.lock();
        let _handling = epoch::handling();
        self.drain(&mut receives);
    }

    fn drain(self, receives: &mut Receives) {
        let mut handled = self.feed_parked(receives);
        let mut come = Completions::none();
        // What comes meanwhile can wait.
        while handled < self.table.device.handles.limits.receives as usize {
            come.clear();
            self.table.device.poll_received(&mut come);
            if come.count() == 0 {
                break;
            }
            handled += come.count();
            come.iter().for_each(|completion| self.received(receives, &completion));
            self.refill(receives);
        }
        // Also where what was parked is dropped: nothing might come that has a look refill it.
        self.refill(receives);
        if handled > 0 {
            self.end_of_bytes(receives);
            self.up.ranks().wake_own();
        }
    }

    fn refill(self, receives: &mut Receives) {
        if !receives.has_to_refill() {
            return;
        }
        if let Err(reason) = receives.refill(&self.table.device) {
            log::warn!("messages by the device: {reason}");
        }
    }

    fn lane_of(self, number: u32) -> Option<&'a Lane> {
        let (queue, peer) = self.table.by_number.find(number)?;
        Some(self.table.lane(queue, peer))
    }

    fn sent(self, completion: &Completion) {
        // Else of a pair that has been taken down.
        let Some(lane) = self.lane_of(completion.number) else { return };
        let mut state = lane.lock();
        if !state.is_told_by(completion) {
            return;
        }
        match completion.outcome {
            Outcome::Done => {
                let mut ended = Ended::default();
                let was_up = state.pairing.is_up();
                state.completed(completion, &mut ended);
                let comes_up = !was_up && state.pairing.is_up();
                if comes_up {
                    self.came_up(lane, &mut state);
                }
                self.pump(lane, state);
                ended.tell(self.up, lane.peer);
                if lane.queue == STREAM {
                    self.go_on_with_stream(lane, comes_up);
                }
            }
            Outcome::Failed { status, vendor } => {
                let failure = self.table.failure_of(lane.peer, status, vendor);
                state.failed.get_or_insert(failure);
                drop(state);
                self.table.has_stalled.store(true, Ordering::Release);
            }
        }
    }
}

/// Whether a mark was set, which is taken; where it is not, nothing is written.
fn take(mark: &AtomicBool) -> bool {
    mark.load(Ordering::Acquire) && mark.swap(false, Ordering::AcqRel)
}

/// Why a request to a segment that is no more is not posted.
const GONE: &str = "it has deleted the segment";
