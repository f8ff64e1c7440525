//! The way to one peer: what chapters post to, whichever transport carries it.
//!
//! An [`Endpoint`] is made anew for each request, from the number of the peer: it is a few words
//! that live in registers. Its [`Carrier`] is matched where something is handed over.

mod memory;

use crate::config::{CHANNELS, STATUS};
use crate::error::{Error, Result};
use crate::ids::{QueueId, Rank};
#[cfg(feature = "test-transports")]
use crate::transport::faulty::Faults;
use crate::transport::payload::{ChannelMessage, Payload};
use crate::transport::posted_receives::PostedReceives;
use crate::transport::requests::{GetTarget, PendingCall, PendingRequests, RequestKey};
use crate::transport::tcp::endpoint_table::EndpointTable;
use crate::transport::tcp::poll_sets::{COMPLETIONS, DEVICE_EVENTS};
use crate::transport::tcp::send_queue::Item;
#[cfg(feature = "test-transports")]
use crate::transport::twin::{Network, Port};
use crate::transport::verbs::{AtomicReach, Device, DeviceTable, Verbs};
use crate::transport::{CHUNK, Link, Upcalls};
use crate::wire::message::{Message, Put, RemoteAddress, RemoteCall, Stream};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// When a request goes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Departure {
    /// At once, or with what follows in a quick succession.
    Now,
    /// With the next request to the same peer, which is posted right behind it.
    WithNext,
    /// With whatever goes to the peer next, or when somebody waits.
    WithAny,
}

/// The kinds of carriers, as lanes keep them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CarrierKind {
    Stream,
    /// A device, with streams for all that it does not carry.
    Verbs,
    #[cfg(feature = "test-transports")]
    Faulty,
    #[cfg(feature = "test-transports")]
    Twin,
}

impl CarrierKind {
    /// Bytes of one get at most, so that what others ask of its owner has its turn in between; a
    /// device shares itself out.
    pub(crate) fn get_max(self) -> u64 {
        if self == CarrierKind::Verbs { u64::MAX } else { CHUNK }
    }

    /// The kind of this number.
    #[inline]
    pub(crate) fn of_number(number: u8) -> CarrierKind {
        match number {
            number if number == CarrierKind::Verbs as u8 => CarrierKind::Verbs,
            #[cfg(feature = "test-transports")]
            number if number == CarrierKind::Faulty as u8 => CarrierKind::Faulty,
            #[cfg(feature = "test-transports")]
            number if number == CarrierKind::Twin as u8 => CarrierKind::Twin,
            _ => CarrierKind::Stream,
        }
    }
}

/// What a way to a peer can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// The peer's memory can be mapped here.
    pub(crate) maps_memory: bool,
    /// Messages carry descriptors.
    pub(crate) descriptors: bool,
}

/// What carries requests to a peer.
#[derive(Clone, Copy)]
pub(crate) enum Carrier<'a> {
    /// A stream: TCP between nodes, a Unix socket within one.
    Stream(&'a EndpointTable),
    /// A device, beside streams.
    Verbs(&'a DeviceTable, &'a EndpointTable),
    /// Streams, behind what a test holds back.
    #[cfg(feature = "test-transports")]
    Faulty(&'a Faults, &'a EndpointTable),
    /// The network of a test, in one process and in virtual time.
    #[cfg(feature = "test-transports")]
    Twin(&'a Port),
}

/// The way to one peer.
#[derive(Clone, Copy)]
pub(crate) struct Endpoint<'a> {
    pub(crate) peer: Rank,
    pub(crate) up: &'a dyn Upcalls,
    pub(crate) carrier: Carrier<'a>,
}

/// All that a rank has to reach others by.
#[derive(Debug)]
pub(crate) struct Endpoints {
    pub(crate) stream: EndpointTable,
    /// This rank's device, for ranks of other nodes.
    pub(crate) device: Option<DeviceTable>,
    #[cfg(feature = "test-transports")]
    pub(crate) twin: Option<Port>,
    #[cfg(feature = "test-transports")]
    pub(crate) faults: Option<Faults>,
    /// Whether there are ranks of other nodes, so that a thread that waits looks after what they
    /// send.
    pub(crate) remote: bool,
    /// Whether this rank's device executes the atomic operations on its memory, which processors
    /// must not execute beside it.
    pub(crate) atomics_by_device: bool,
    /// What peers have not answered.
    pub(crate) requests: Arc<PendingRequests>,
    /// Messages of channels whose data has a place already.
    pub(crate) posted_receives: Arc<PostedReceives>,
}

impl Endpoints {
    /// Streams, and nothing else.
    pub(crate) fn new(stream: EndpointTable) -> Endpoints {
        Endpoints {
            remote: stream.remote,
            requests: Arc::clone(&stream.requests),
            posted_receives: Arc::clone(&stream.posted_receives),
            stream,
            device: None,
            atomics_by_device: false,
            #[cfg(feature = "test-transports")]
            twin: None,
            #[cfg(feature = "test-transports")]
            faults: None,
        }
    }

    /// What a device of a job of so many ranks can be used by; `forced` says that no data may go
    /// by streams.
    ///
    /// # Errors
    /// In words, why it cannot be used.
    pub(crate) fn device_table(
        &self,
        device: Device,
        forced: bool,
        ranks: u32,
    ) -> std::result::Result<DeviceTable, String> {
        let (requests, posted) = (Arc::clone(&self.requests), Arc::clone(&self.posted_receives));
        DeviceTable::new(device, forced, ranks, requests, posted)
    }

    /// A device besides.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn with_device(self, device: DeviceTable) -> Result<Endpoints> {
        self.stream.sets.data.add(device.descriptor(), COMPLETIONS)?;
        self.stream.sets.poll.add(device.events(), DEVICE_EVENTS)?;
        let atomics_by_device = device.atomics() == Some(AtomicReach::Device);
        let mut stream = self.stream;
        if device.has_to_carry_messages() {
            stream.connections.withhold_data();
        }
        Ok(Endpoints { stream, device: Some(device), atomics_by_device, ..self })
    }

    /// The network of a test besides, for all ranks but this one.
    #[cfg(feature = "test-transports")]
    pub(crate) fn on_twin(stream: EndpointTable, network: Network, me: Rank) -> Endpoints {
        let endpoints = Endpoints::new(stream);
        let requests = Arc::clone(&endpoints.requests);
        let port = Port::new(network, me, requests, Arc::clone(&endpoints.posted_receives));
        Endpoints { twin: Some(port), remote: true, ..endpoints }
    }

    /// What carries what belongs to no lane, and most lanes.
    #[inline]
    fn usual(&self) -> CarrierKind {
        #[cfg(feature = "test-transports")]
        if self.twin.is_some() {
            return CarrierKind::Twin;
        }
        #[cfg(feature = "test-transports")]
        if self.faults.is_some() {
            return CarrierKind::Faulty;
        }
        if self.device.is_some() { CarrierKind::Verbs } else { CarrierKind::Stream }
    }

    /// What is to carry the next request of a lane, unless something of it is under way; `device`
    /// says that devices reach the memory at both ends.
    #[inline]
    pub(crate) fn preferred(
        &self,
        up: &dyn Upcalls,
        queue: QueueId,
        peer: Rank,
        device: bool,
    ) -> CarrierKind {
        if let Some(verbs) = self.verbs(up) {
            let carries =
                if device { verbs.carries(queue, peer) } else { verbs.holds(queue, peer) };
            return if carries { CarrierKind::Verbs } else { CarrierKind::Stream };
        }
        #[cfg(feature = "test-transports")]
        if self.faults.as_ref().is_some_and(Faults::steps_aside) {
            return CarrierKind::Stream;
        }
        self.usual()
    }

    /// The carrier of this kind.
    #[inline]
    pub(crate) fn carrier(&self, kind: CarrierKind) -> Carrier<'_> {
        let found = match kind {
            CarrierKind::Stream => None,
            CarrierKind::Verbs => {
                self.device.as_ref().map(|device| Carrier::Verbs(device, &self.stream))
            }
            #[cfg(feature = "test-transports")]
            CarrierKind::Faulty => {
                self.faults.as_ref().map(|faults| Carrier::Faulty(faults, &self.stream))
            }
            #[cfg(feature = "test-transports")]
            CarrierKind::Twin => self.twin.as_ref().map(Carrier::Twin),
        };
        found.unwrap_or(Carrier::Stream(&self.stream))
    }

    /// The way to `peer`.
    #[inline]
    pub(crate) fn to<'a>(&'a self, up: &'a dyn Upcalls, peer: Rank) -> Endpoint<'a> {
        Endpoint { peer, up, carrier: self.carrier(self.usual()) }
    }

    /// How `peer` is reached.
    pub(crate) fn link(&self, up: &dyn Upcalls, peer: Rank) -> Link {
        match self.carrier(self.usual()) {
            _ if peer == up.ranks().me => Link::Own,
            _ if up.ranks().is_local(peer) => Link::SharedMemory,
            Carrier::Verbs(device, _) if device.reaches(peer) => Link::Verbs,
            Carrier::Stream(_) | Carrier::Verbs(..) => Link::Tcp,
            #[cfg(feature = "test-transports")]
            Carrier::Faulty(..) | Carrier::Twin(_) => Link::Tcp,
        }
    }

    /// The device, with what is above it and beside it.
    #[inline]
    pub(crate) fn verbs<'a>(&'a self, up: &'a dyn Upcalls) -> Option<Verbs<'a>> {
        self.device.as_ref().map(|table| Verbs { table, up, stream: &self.stream })
    }

    /// The device, if it executes atomic operations on memory of `peer`; `is_mapped` says that the
    /// processor can too.
    pub(crate) fn atomics<'a>(&'a self, up: &'a dyn Upcalls, is_mapped: bool) -> Option<Verbs<'a>> {
        let verbs = self.verbs(up)?;
        let by_processor = is_mapped && !self.atomics_by_device;
        verbs.table.atomics().filter(|_| !by_processor).map(|_| verbs)
    }

    /// Why the device has lost an atomic operation on memory of `peer`, if it executes them.
    pub(crate) fn device_error(&self, peer: Rank) -> Option<String> {
        let device = self.device.as_ref().filter(|device| device.atomics().is_some());
        device.and_then(|device| device.last_error(peer))
    }

    /// Sends what is held back.
    #[inline]
    pub(crate) fn flush(&self, up: &dyn Upcalls) {
        self.stream.flush_corked(up);
    }

    /// Answers a request that came by a carrier of this name, if that is still there: else the
    /// asker knows already that its request has failed.
    pub(crate) fn answer(
        &self,
        carrier: u64,
        request: u64,
        outcome: std::result::Result<u64, String>,
    ) {
        #[cfg(feature = "test-transports")]
        if let Some(twin) = &self.twin {
            twin.answer(carrier, request, outcome);
            return;
        }
        self.stream.answer(carrier, request, outcome);
    }
}

impl<'a> Endpoint<'a> {
    /// The stream below.
    fn unwrapped(self) -> Self {
        match self.carrier {
            Carrier::Verbs(_, stream) => Endpoint { carrier: Carrier::Stream(stream), ..self },
            #[cfg(feature = "test-transports")]
            Carrier::Faulty(_, stream) => Endpoint { carrier: Carrier::Stream(stream), ..self },
            _ => self,
        }
    }

    fn verbs(self, table: &'a DeviceTable, stream: &'a EndpointTable) -> Verbs<'a> {
        Verbs { table, up: self.up, stream }
    }
}

/// Posting.
impl Endpoint<'_> {
    /// Posts a put. It fails where the queue has lost a request to the peer, behind which it would
    /// arrive.
    ///
    /// # Errors
    /// The peer cannot be reached; the put has not been posted.
    pub(crate) fn put(
        self,
        put: Put,
        payload: Option<Payload>,
        departure: Departure,
    ) -> Result<()> {
        let queue = put.stream.queue;
        match self.carrier {
            Carrier::Stream(table) => {
                let item = Item::put(put, payload);
                match departure {
                    Departure::Now => table.post(self.up, self.peer, queue, item),
                    Departure::WithNext => table.post_along(self.up, self.peer, queue, item, true),
                    Departure::WithAny => table.post_along(self.up, self.peer, queue, item, false),
                }
            }
            Carrier::Verbs(..) if queue == CHANNELS => {
                self.unwrapped().put(put, payload, departure)
            }
            Carrier::Verbs(table, stream) => self.verbs(table, stream).put(self.peer, put, payload),
            #[cfg(feature = "test-transports")]
            Carrier::Faulty(faults, _) => faults.put(self.unwrapped(), put, payload, departure),
            #[cfg(feature = "test-transports")]
            Carrier::Twin(port) => port.put(self.up, self.peer, put, payload),
        }
    }

    /// Posts a get.
    ///
    /// # Errors
    /// As [`put`](Endpoint::put).
    pub(crate) fn get(self, stream: Stream, remote: RemoteAddress, to: GetTarget) -> Result<()> {
        match self.carrier {
            Carrier::Stream(table) => table.post_get(self.up, self.peer, stream, remote, to),
            Carrier::Verbs(..) if stream.queue == STATUS => {
                self.unwrapped().get(stream, remote, to)
            }
            Carrier::Verbs(table, under) => {
                self.verbs(table, under).get(self.peer, stream, remote, to)
            }
            #[cfg(feature = "test-transports")]
            Carrier::Faulty(faults, _) => faults.get(self.unwrapped(), stream, remote, to),
            #[cfg(feature = "test-transports")]
            Carrier::Twin(port) => port.get(self.up, self.peer, stream, remote, to),
        }
    }

    /// Posts a message of a channel, before the first of which the way to the peer was lost so
    /// often. Its data is not needed any more then, unless it is lent. False if there is no room
    /// now.
    ///
    /// # Errors
    /// As [`put`](Endpoint::put).
    ///
    /// # Safety
    /// The data is readable, and nobody else uses the slot until the message has been sent.
    pub(crate) unsafe fn message(self, losses: u64, message: ChannelMessage<'_>) -> Result<bool> {
        match self.carrier {
            // SAFETY: as the caller says.
            Carrier::Stream(table) => unsafe {
                table.post_message(self.up, self.peer, (losses, false), message)
            },
            Carrier::Verbs(table, stream) => {
                let terms = (losses, table.has_to_carry_messages());
                // SAFETY: as the caller says.
                let posted = unsafe { stream.post_message(self.up, self.peer, terms, message) };
                if matches!(posted, Ok(false)) && table.has_to_carry_messages() {
                    // There is no room, or no pair.
                    let carried = self.verbs(table, stream).carries_messages_to(self.peer);
                    carried.map_err(|reason| self.up.ranks().refused(self.peer, reason))?;
                }
                posted.map_err(|error| match (error, table.last_error(self.peer)) {
                    (Error::Refused { rank, reason }, Some(why)) => {
                        Error::Refused { rank, reason: format!("{reason}: {why}") }
                    }
                    (error, _) => error,
                })
            }
            #[cfg(feature = "test-transports")]
            Carrier::Faulty(faults, _) if faults.is_full(self.peer) => Ok(false),
            #[cfg(feature = "test-transports")]
            // SAFETY: as the caller says.
            Carrier::Faulty(..) => unsafe { self.unwrapped().message(losses, message) },
            #[cfg(feature = "test-transports")]
            // SAFETY: as the caller says.
            Carrier::Twin(port) => unsafe { port.message(self.up, self.peer, message) },
        }
    }

    /// Sends a message that nobody answers.
    ///
    /// # Errors
    /// The peer cannot be reached.
    pub(crate) fn send(self, message: &Message) -> Result<()> {
        match self.carrier {
            Carrier::Stream(table) => table.send_frame(self.up, self.peer, message, false),
            Carrier::Verbs(..) => self.unwrapped().send(message),
            #[cfg(feature = "test-transports")]
            Carrier::Faulty(faults, _) => faults.send(self.unwrapped(), message),
            #[cfg(feature = "test-transports")]
            Carrier::Twin(port) => port.send(self.up, self.peer, message),
        }
    }

    /// The same of one that carries data of the program: where a device alone may carry that, it
    /// waits until one carries the connection.
    ///
    /// # Errors
    /// As [`send`](Endpoint::send).
    pub(crate) fn send_data(self, message: &Message) -> Result<()> {
        match self.carrier {
            Carrier::Verbs(table, stream) if table.has_to_carry_messages() => {
                let sent = stream.send_frame(self.up, self.peer, message, true);
                if stream.connections.withholds(self.peer) {
                    stream.connections.note_news();
                    stream.sets.wakeup.wake();
                }
                sent
            }
            _ => self.send(message),
        }
    }

    /// Starts a call, or continues one whose timeout ran out.
    ///
    /// # Errors
    /// The peer cannot be reached.
    pub(crate) fn call(
        self,
        key: RequestKey,
        call: RemoteCall,
        files: &[BorrowedFd<'_>],
    ) -> Result<Arc<PendingCall>> {
        match self.carrier {
            Carrier::Stream(table) => table.call(self.up, key, self.peer, call, files),
            Carrier::Verbs(..) => self.unwrapped().call(key, call, files),
            #[cfg(feature = "test-transports")]
            Carrier::Faulty(..) => self.unwrapped().call(key, call, files),
            #[cfg(feature = "test-transports")]
            Carrier::Twin(port) => port.call(self.up, key, self.peer, call),
        }
    }
}

/// The connection.
impl Endpoint<'_> {
    /// What this way can do.
    pub(crate) fn capabilities(self) -> Capabilities {
        let local = self.up.ranks().is_local(self.peer);
        match self.carrier {
            Carrier::Stream(_) => Capabilities { maps_memory: local, descriptors: local },
            Carrier::Verbs(..) => self.unwrapped().capabilities(),
            #[cfg(feature = "test-transports")]
            Carrier::Faulty(..) => self.unwrapped().capabilities(),
            #[cfg(feature = "test-transports")]
            Carrier::Twin(_) => Capabilities { maps_memory: false, descriptors: false },
        }
    }

    /// Begins to connect with the peer, unless that has been done.
    ///
    /// # Errors
    /// The peer cannot be reached.
    pub(crate) fn connect(self) -> Result<()> {
        match self.carrier {
            Carrier::Stream(table) => table.open(self.up, self.peer).map(|_| ()),
            Carrier::Verbs(..) => self.unwrapped().connect(),
            #[cfg(feature = "test-transports")]
            Carrier::Faulty(..) => self.unwrapped().connect(),
            #[cfg(feature = "test-transports")]
            Carrier::Twin(_) => self.up.ranks().check_alive(self.peer, "a connection to it"),
        }
    }

    /// Stops using the connection with the peer, which is closed once neither side does; false
    /// while requests are under way, or it is being made.
    pub(crate) fn release(self) -> bool {
        match self.carrier {
            Carrier::Stream(table) => table.release_connection(self.up, self.peer),
            Carrier::Verbs(table, _) => table.has_none(self.peer) && self.unwrapped().release(),
            #[cfg(feature = "test-transports")]
            Carrier::Faulty(faults, _) => faults.has_none(self.peer) && self.unwrapped().release(),
            #[cfg(feature = "test-transports")]
            Carrier::Twin(_) => true,
        }
    }

    /// Ends the connection with the peer: what is under way on it is lost.
    pub(crate) fn disconnect(self) {
        match self.carrier {
            Carrier::Stream(table) => table.disconnect(self.up, self.peer),
            Carrier::Verbs(table, stream) => {
                self.verbs(table, stream).disconnect(self.peer);
                self.unwrapped().disconnect();
            }
            #[cfg(feature = "test-transports")]
            Carrier::Faulty(..) => self.unwrapped().disconnect(),
            #[cfg(feature = "test-transports")]
            Carrier::Twin(port) => port.disconnect(self.up, self.peer),
        }
    }

    /// Whether everything posted has been handed over, so that it arrives even if this rank leaves.
    pub(crate) fn is_drained(self) -> bool {
        match self.carrier {
            Carrier::Stream(table) => table.connections.is_drained(self.peer),
            Carrier::Verbs(table, stream) => {
                let verbs = self.verbs(table, stream);
                let waits_in_vain = || {
                    let withholds = stream.connections.withholds(self.peer);
                    withholds && verbs.carries_messages_to(self.peer).is_err()
                };
                table.has_none(self.peer) && (self.unwrapped().is_drained() || waits_in_vain())
            }
            #[cfg(feature = "test-transports")]
            Carrier::Faulty(faults, _) => {
                faults.has_none(self.peer) && self.unwrapped().is_drained()
            }
            #[cfg(feature = "test-transports")]
            Carrier::Twin(_) => true,
        }
    }

    /// Whether something that the peer has sent may not have been read.
    pub(crate) fn may_bring_more(self) -> bool {
        match self.carrier {
            Carrier::Stream(table) => table.connections.has(self.peer),
            Carrier::Verbs(table, _) => {
                table.has_message_pair(self.peer) || self.unwrapped().may_bring_more()
            }
            #[cfg(feature = "test-transports")]
            Carrier::Faulty(..) => self.unwrapped().may_bring_more(),
            #[cfg(feature = "test-transports")]
            Carrier::Twin(port) => port.may_bring_more(self.peer),
        }
    }

    /// The address at which the peer is reached, if that is by a socket between nodes.
    pub(crate) fn address(self) -> Option<SocketAddr> {
        match self.carrier {
            Carrier::Stream(table) => table.dialing.address(self.peer),
            Carrier::Verbs(..) => self.unwrapped().address(),
            #[cfg(feature = "test-transports")]
            Carrier::Faulty(..) => self.unwrapped().address(),
            #[cfg(feature = "test-transports")]
            Carrier::Twin(_) => None,
        }
    }

    /// Why the peer could not be reached last.
    pub(crate) fn last_error(self) -> Option<String> {
        match self.carrier {
            Carrier::Stream(table) => table.dialing.last_error(self.peer),
            Carrier::Verbs(table, _) => {
                table.last_error(self.peer).or_else(|| self.unwrapped().last_error())
            }
            #[cfg(feature = "test-transports")]
            Carrier::Faulty(..) => self.unwrapped().last_error(),
            #[cfg(feature = "test-transports")]
            Carrier::Twin(_) => None,
        }
    }
}
