//! Receiving: whoever holds the [`Receiver`] looks after the sockets of this rank.
//!
//! A caller that waits takes it if nobody else has it; the progress thread does while no caller is
//! inside. What is received for a segment goes there straight from the socket.

use crate::ids::Rank;
use crate::os::event::Event;
use crate::os::socket::{self, Piece};
use crate::os::tcp;
use crate::policy::acknowledge::{Batch, Flush};
use crate::policy::focus::{Focus, Look};
use crate::policy::owner::PollOwner;
use crate::sync::{Ordering, epoch, fence};
use crate::transport::software_target::Served;
use crate::transport::tcp::Tcp;
use crate::transport::tcp::connection::{Broken, Connection};
use crate::transport::tcp::endpoint_table::EndpointTable;
use crate::transport::tcp::poll_sets::WAKEUP_SOCKET;
use crate::wire::frame::{FRAME_MAX, Frame, PREFIX};
use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Rounds of receiving before other connections get a turn.
const ROUNDS: usize = 16;
/// Bytes of a frame that there is room for before a longer one comes.
const USUAL: usize = 256 * 1024;
/// How often the kernel is told to let acknowledgements wait.
const READS_PER_DELAY: u32 = 32;

/// What is to be remembered of a connection between two looks.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    /// The beginning of a frame.
    partial: Vec<u8>,
    /// What the target keeps of it.
    pub(super) served: Served,
    /// Large payloads are coming: so many bytes are received at once where a frame is expected, 0
    /// for [`MANY`].
    few: usize,
    /// How often something was read.
    reads: u32,
    /// Of what comes otherwise than by the socket: how many messages were handled.
    pub(crate) messages: u64,
    /// Another carrier has left this in the middle of a frame.
    taken_over: bool,
}

/// The receiving side of all connections.
#[derive(Debug)]
pub(crate) struct Receiver {
    incoming: HashMap<u64, Incoming>,
    buffer: Vec<u8>,
    discard: Vec<u8>,
    events: Vec<Event>,
    /// Connections whose peers wait for acknowledgements.
    ack_due: Vec<Arc<Connection>>,
    /// The connection on which something came last.
    hot: Option<Box<Hot>>,
    /// How often it is looked at alone, and when its socket leaves the set.
    focus: Focus,
    /// The end of a large payload has come.
    bulk: bool,
}

/// The liveliest connection, at hand.
#[derive(Debug)]
struct Hot {
    connection: Arc<Connection>,
    incoming: Incoming,
    /// Whether its socket is out of the set, which others hear from [`EndpointTable::polling`].
    direct_poll: bool,
}

impl Receiver {
    pub(crate) fn new() -> Receiver {
        Receiver {
            incoming: HashMap::new(),
            buffer: Vec::new(),
            discard: Vec::new(),
            events: Vec::new(),
            ack_due: Vec::new(),
            hot: None,
            focus: Focus::default(),
            bulk: false,
        }
    }

    /// Handles what has come without waiting; false if nothing has.
    pub(crate) fn look(&mut self, tcp: Tcp<'_>) -> bool {
        self.forget_dropped(tcp.table);
        let possible = self.hot.as_ref().is_some_and(|hot| !hot.connection.wants_room());
        let look = self.focus.next(possible);
        let busy = match self.hot.take_if(|_| look == Look::Focused) {
            Some(hot) => self.serve_hot(tcp, hot, true, false),
            None => self.turn(tcp, 0, || ()),
        };
        if busy {
            self.leave_epoll(tcp.table);
        }
        if self.focus.on_looked(busy) {
            self.flush_acks(tcp, Flush::Awaited);
        }
        busy
    }

    /// Waits up to `limit_ms` (-1: no limit) for something to come, says that it is `awake` and
    /// handles it; false if nothing has.
    pub(crate) fn turn(&mut self, tcp: Tcp<'_>, limit_ms: i32, awake: impl FnOnce()) -> bool {
        let endpoints = &tcp.table;
        if self.hot.as_ref().is_some_and(|hot| hot.direct_poll && hot.connection.wants_room()) {
            self.rejoin_epoll(endpoints);
        }
        let mut events = std::mem::take(&mut self.events);
        events.clear();
        endpoints.sets.data.wait(&mut events, limit_ms);
        awake();
        let mut busy = !events.is_empty();
        for event in &events {
            // One before may have ended others.
            self.forget_dropped(endpoints);
            if event.token == WAKEUP_SOCKET {
                endpoints.sets.clear_wakeup_socket();
            } else if let Some(hot) = self.hot.take_if(|hot| hot.connection.token == event.token) {
                self.serve_hot(tcp, hot, event.readable, event.writable);
            } else if let Some(connection) = endpoints.connections.get(event.token) {
                self.serve_other(tcp, connection, event.readable, event.writable);
            }
        }
        self.forget_dropped(endpoints);
        self.events = events;
        if let Some(hot) = self.hot.take_if(|hot| hot.direct_poll) {
            busy |= self.serve_hot(tcp, hot, true, false);
        }
        busy
    }

    /// Takes the socket of the liveliest connection out of the set, if all comes on it and nobody
    /// sleeps on the set: arrivals on it then cost less. Whoever is about to sleep [puts it
    /// back](Self::rejoin_epoll).
    fn leave_epoll(&mut self, endpoints: &EndpointTable) {
        let Some(hot) =
            self.hot.as_mut().filter(|hot| !hot.direct_poll && self.focus.should_poll_directly())
        else {
            return;
        };
        if endpoints.polling.owner() != PollOwner::Timer {
            return;
        }
        endpoints.polling.set_direct(true);
        // The progress thread says that it ticks no longer and looks at this then: one of both sees
        // the other.
        fence(Ordering::SeqCst);
        let ticking = endpoints.polling.owner() == PollOwner::Timer;
        hot.direct_poll = ticking && hot.connection.leave_epoll(&endpoints.sets.data);
        if !hot.direct_poll {
            endpoints.polling.set_direct(false);
        }
    }

    /// Puts it back; false if the kernel has no room for it now, so that somebody has to look.
    pub(crate) fn rejoin_epoll(&mut self, endpoints: &EndpointTable) -> bool {
        if let Some(hot) = self.hot.as_mut().filter(|hot| hot.direct_poll) {
            hot.direct_poll = !hot.connection.rejoin_epoll(&endpoints.sets.data);
            self.focus.on_rejoined();
            endpoints.polling.set_direct(hot.direct_poll);
            return !hot.direct_poll;
        }
        true
    }

    /// Reads nothing more on connections that have been dropped, whatever is still there.
    fn forget_dropped(&mut self, endpoints: &EndpointTable) {
        if endpoints.connections.take_dropped() {
            self.incoming.retain(|token, _| endpoints.connections.get(*token).is_some());
            let dropped =
                |hot: &mut Box<Hot>| endpoints.connections.get(hot.connection.token).is_none();
            if self.hot.take_if(dropped).is_some_and(|hot| hot.direct_poll) {
                endpoints.polling.set_direct(false);
            }
        }
    }

    /// Whether peers wait for acknowledgements.
    pub(crate) fn has_unsent_acks(&self) -> bool {
        !self.ack_due.is_empty()
    }

    /// Acknowledges what has been completed, as far as `flush` says.
    pub(crate) fn flush_acks(&mut self, tcp: Tcp<'_>, flush: Flush) {
        self.ack_due.retain(|connection| tcp.table.send_ack(tcp.up, connection, flush));
    }

    /// The same for a caller that stops looking after the sockets: the progress thread sends with
    /// its next ticks what nothing goes along with. If it does not tick, all goes out.
    pub(crate) fn send_or_delay_acks(&mut self, tcp: Tcp<'_>) {
        let endpoints = &tcp.table;
        let ticks = || endpoints.polling.owner() == PollOwner::Timer;
        if ticks() {
            self.flush_acks(tcp, Flush::Undelayed { tick: false });
            endpoints.polling.set_acks_delayed(self.has_unsent_acks());
            // The thread says that it ticks no longer and looks at this then: one of both sees the
            // other.
            fence(Ordering::SeqCst);
        }
        if !ticks() {
            self.flush_acks(tcp, Flush::All);
        }
    }

    /// Whether the end of a large payload has come since the last call.
    pub(crate) fn take_bulk(&mut self) -> bool {
        std::mem::take(&mut self.bulk)
    }

    /// Looks after the liveliest connection; false if there was nothing to do.
    fn serve_hot(
        &mut self,
        tcp: Tcp<'_>,
        mut hot: Box<Hot>,
        readable: bool,
        writable: bool,
    ) -> bool {
        let _handling = epoch::handling();
        let Hot { connection, incoming, .. } = &mut *hot;
        match self.serve(tcp, connection, incoming, readable, writable) {
            Ok(busy) => {
                self.focus.on_focused(busy);
                self.hot = Some(hot);
                busy
            }
            Err(Broken) => {
                if hot.direct_poll {
                    tcp.table.polling.set_direct(false);
                }
                tcp.table.at_its_end(tcp.up, &hot.connection);
                true
            }
        }
    }

    /// Looks after another connection, which becomes the liveliest if something has come on it.
    fn serve_other(
        &mut self,
        tcp: Tcp<'_>,
        connection: Arc<Connection>,
        readable: bool,
        writable: bool,
    ) {
        let _handling = epoch::handling();
        let mut incoming = self.incoming.remove(&connection.token).unwrap_or_default();
        match self.serve(tcp, &connection, &mut incoming, readable, writable) {
            Ok(true) if readable && self.rejoin_epoll(tcp.table) => {
                self.focus.on_moved();
                let hot = Hot { connection, incoming, direct_poll: false };
                let former = self.hot.replace(Box::new(hot));
                if let Some(Hot { connection, incoming, .. }) = former.map(|former| *former) {
                    self.incoming.insert(connection.token, incoming);
                }
            }
            Ok(_) => {
                self.incoming.insert(connection.token, incoming);
            }
            Err(Broken) => tcp.table.at_its_end(tcp.up, &connection),
        }
    }

    /// Looks after one connection; false if there was nothing to do.
    fn serve(
        &mut self,
        tcp: Tcp<'_>,
        connection: &Arc<Connection>,
        incoming: &mut Incoming,
        readable: bool,
        writable: bool,
    ) -> Result<bool, Broken> {
        let mut result = Ok(writable);
        let mut readable = readable;
        if writable {
            // Where that fails, what was received before the end is still to be read.
            readable |= connection.flush(&tcp.table.sets.data).is_err();
            // Somebody may wait until everything has been handed over.
            tcp.up.ranks().wake_own();
        }
        if readable {
            result = self.read(tcp, connection, incoming);
            self.account(tcp, connection, incoming);
        }
        result
    }

    /// Takes note of puts that have been completed.
    fn account(&mut self, tcp: Tcp<'_>, connection: &Arc<Connection>, incoming: &mut Incoming) {
        let completed = std::mem::take(&mut incoming.served.completed);
        if completed.puts == 0 {
            return;
        }
        // For all that came together: notifications may have.
        tcp.up.ranks().wake_own();
        connection.delay_ack(completed);
        if completed.urgent {
            tcp.table.send_ack(tcp.up, connection, Flush::All);
        } else if !self.ack_due.iter().any(|ack_due| ack_due.token == connection.token) {
            self.ack_due.push(Arc::clone(connection));
        }
    }

    /// Receives and handles, for some rounds; false if nothing came.
    fn read(
        &mut self,
        tcp: Tcp<'_>,
        connection: &Connection,
        incoming: &mut Incoming,
    ) -> Result<bool, Broken> {
        let Some(fd) = connection.fd() else { return Ok(false) };
        let mut busy = false;
        incoming.begin(tcp, connection);
        for _ in 0..ROUNDS {
            let drained = if incoming.served.body.is_some() {
                self.body(tcp, connection, fd, incoming)?
            } else {
                self.frames(tcp, connection, fd, incoming)?
            };
            match drained {
                Received::Nothing => break,
                Received::All => {
                    busy = true;
                    break;
                }
                Received::Some => busy = true,
            }
        }
        Ok(busy)
    }

    /// Receives frames and handles those that are whole.
    fn frames(
        &mut self,
        tcp: Tcp<'_>,
        connection: &Connection,
        fd: BorrowedFd<'_>,
        incoming: &mut Incoming,
    ) -> Result<Received, Broken> {
        if let Some(left) = incoming.left_of_long() {
            return self.long_frame(tcp, connection, fd, incoming, left);
        }
        let (have, want) = (incoming.partial.len(), incoming.want());
        self.make_room(have + want);
        self.buffer[..have].copy_from_slice(&incoming.partial);
        let room = &mut self.buffer[have..have + want];
        let piece = Piece { pointer: room.as_mut_ptr(), len: want };
        // SAFETY: the piece is a part of the buffer.
        let Some(received) =
            (unsafe { receive(connection, fd, piece, &mut incoming.served.descriptors) })?
        else {
            return Ok(Received::Nothing);
        };
        if !connection.local {
            if incoming.reads.is_multiple_of(READS_PER_DELAY) {
                tcp::delay_acknowledgements(fd);
            }
            incoming.reads = incoming.reads.wrapping_add(1);
        }
        self.take_frames(tcp, connection, incoming, have + received)?;
        Ok(if received < want { Received::All } else { Received::Some })
    }

    fn make_room(&mut self, bytes: usize) {
        if self.buffer.len() < bytes {
            self.buffer.resize(bytes.max(USUAL + MANY), 0);
        }
    }

    /// Handles the frames that lie at the begin of the buffer, up to `end`, as far as they are
    /// whole.
    fn take_frames(
        &mut self,
        tcp: Tcp<'_>,
        connection: &Connection,
        incoming: &mut Incoming,
        mut end: usize,
    ) -> Result<(), Broken> {
        catch_up(tcp, connection);
        let (mut start, mut few) = (0, incoming.few);
        while let Some((frame, taken)) = whole(&self.buffer[start..end])? {
            start += taken;
            if !is_between_messages(&frame) {
                few = 0;
            }
            let size = tcp.handle(connection, incoming, frame)?;
            if incoming.taken_over {
                (start, end) = self.resume(tcp, connection, incoming, (start, end))?;
                if incoming.served.body.is_some() {
                    break;
                }
                continue;
            }
            if let Some(body) = &mut incoming.served.body {
                let here = &self.buffer[start..end];
                let here = &here[..here.len().min(usize::try_from(size).unwrap_or(usize::MAX))];
                tcp.target().store(body, here);
                start += here.len();
                if body.left > 0 {
                    break;
                }
                tcp.arrived(connection, incoming)?;
            }
        }
        incoming.few = incoming.served.body.as_ref().map_or(few, few_behind);
        incoming.partial.clear();
        incoming.partial.extend_from_slice(&self.buffer[start..end]);
        if incoming.partial.is_empty() {
            // Nothing is kept for a connection on which nothing is coming.
            incoming.partial = Vec::new();
        }
        Ok(())
    }

    /// Receives payload straight into its place, and with the end of it what follows.
    fn body(
        &mut self,
        tcp: Tcp<'_>,
        connection: &Connection,
        fd: BorrowedFd<'_>,
        incoming: &mut Incoming,
    ) -> Result<Received, Broken> {
        let Some(body) = &mut incoming.served.body else { return Ok(Received::Nothing) };
        let left = usize::try_from(body.left).unwrap_or(usize::MAX);
        // Only behind its head is it known where the data of a message goes.
        let len = tcp.target().left_of_head(body).map_or(left, |head| head.min(left));
        let target =
            connection.peer().and_then(|peer| tcp.target().receive_target(Rank(peer), body));
        let (accepts, pointer) = match tcp.target().wanted(body).filter(|_| target.is_none()) {
            Some(segment) => {
                let accepts = segment.accept();
                let pointer = segment.pointer().wrapping_add(body.offset as usize);
                ((*accepts && tcp.target().is_current(body)).then_some(accepts), pointer)
            }
            None => (None, std::ptr::null_mut()),
        };
        let piece = match &target {
            Some(target) => Piece { pointer: target.pointer, len },
            None if accepts.is_some() => Piece { pointer, len },
            None => {
                self.discard.resize(MANY, 0);
                Piece { pointer: self.discard.as_mut_ptr(), len: len.min(self.discard.len()) }
            }
        };
        // Nothing of a frame is there while payload is awaited. Descriptors come within a node
        // only.
        let more = if connection.local || piece.len < left { 0 } else { incoming.few };
        let behind = Piece { pointer: self.buffer.as_mut_ptr(), len: more.min(self.buffer.len()) };
        // SAFETY: either the scratch buffer, or a checked range of a segment that exists while the
        // lock is held, or memory that a message is expected in; behind it the buffer of frames.
        let received = unsafe {
            match behind.len {
                0 => receive(connection, fd, piece, &mut Vec::new()),
                _ => outcome(socket::receive_two(fd, [piece, behind])),
            }
        }?;
        drop((accepts, target));
        let Some(received) = received else { return Ok(Received::Nothing) };
        let here = received.min(piece.len);
        body.advance(here as u64);
        if body.left == 0 {
            self.bulk = true;
            catch_up(tcp, connection);
            tcp.arrived(connection, incoming)?;
            if received > here {
                self.take_frames(tcp, connection, incoming, received - here)?;
            }
        }
        let all = piece.len + behind.len;
        Ok(if received < all { Received::All } else { Received::Some })
    }
}

impl Incoming {
    /// Handles bytes that have come otherwise than by the socket of their connection.
    pub(crate) fn feed(
        &mut self,
        tcp: Tcp<'_>,
        connection: &Connection,
        mut bytes: &[u8],
    ) -> Result<(), Broken> {
        while !bytes.is_empty() {
            if let Some(body) = &mut self.served.body {
                let len = usize::try_from(body.left).map_or(bytes.len(), |l| l.min(bytes.len()));
                let (here, behind) = bytes.split_at(len);
                bytes = behind;
                resumed::store(tcp, connection, body, here);
                if body.left == 0 {
                    tcp.arrived(connection, self)?;
                }
                continue;
            }
            let before = self.partial.len();
            let found = if before == 0 {
                whole(bytes)?
            } else {
                self.partial.extend_from_slice(bytes);
                whole(&self.partial)?
            };
            let Some((frame, len)) = found else {
                if before == 0 {
                    self.partial.extend_from_slice(bytes);
                }
                return Ok(());
            };
            self.partial.clear();
            bytes = &bytes[len - before..];
            tcp.handle(connection, self, frame)?;
            // A payload of nothing is whole at once; perhaps nothing follows.
            if self.served.body.as_ref().is_some_and(|body| body.left == 0) {
                tcp.arrived(connection, self)?;
            }
        }
        Ok(())
    }

    /// What has been completed since the last call.
    pub(crate) fn take_completed(&mut self) -> Batch {
        std::mem::take(&mut self.served.completed)
    }
}

mod amounts;
mod long_frames;
mod resumed;

use amounts::{MANY, few_behind, is_between_messages};

/// After something was received, before it is handled: what it speaks of comes first.
fn catch_up(tcp: Tcp<'_>, connection: &Connection) {
    if !connection.local {
        tcp.up.make_visible();
    }
    tcp.up.catch_up();
}

/// What one receiving brought.
enum Received {
    Nothing,
    /// There may be more.
    Some,
    /// There was no more.
    All,
}

/// The first frame of what has come, and how many bytes it takes.
fn whole(bytes: &[u8]) -> Result<Option<(Frame, usize)>, Broken> {
    let Some(prefix) = bytes.first_chunk::<PREFIX>() else { return Ok(None) };
    let len = u32::from_le_bytes(*prefix) as usize;
    if len > FRAME_MAX {
        return Err(Broken);
    }
    let Some(body) = bytes.get(PREFIX..PREFIX + len) else { return Ok(None) };
    Ok(Some((Frame::decode(body).ok_or(Broken)?, PREFIX + len)))
}

/// Receives straight into memory; `None` where there is nothing now.
///
/// # Safety
/// The piece is writable.
unsafe fn receive(
    connection: &Connection,
    fd: BorrowedFd<'_>,
    piece: Piece,
    descriptors: &mut Vec<OwnedFd>,
) -> Result<Option<usize>, Broken> {
    // SAFETY: the caller vouches for the piece.
    let received = unsafe {
        if connection.local {
            socket::receive(fd, piece, descriptors)
        } else {
            socket::receive_bytes(fd, piece)
        }
    };
    if matches!(received, Ok(0)) {
        connection.note_read_out();
    }
    outcome(received)
}

/// What receiving comes to.
fn outcome(received: io::Result<usize>) -> Result<Option<usize>, Broken> {
    match received {
        Ok(0) => Err(Broken),
        Ok(received) => Ok(Some(received)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(Broken),
        },
    }
}
