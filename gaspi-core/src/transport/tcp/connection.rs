//! One connection to a peer, as far as sending goes: frames, descriptors and payloads out.
//!
//! Between nodes it carries the requests of both sides, and the answers to them; within a node it
//! carries requests of the side that opened it. Puts are acknowledged on the connection that they
//! came on.
//!
//! What it has to send is in [`outgoing`](crate::transport::tcp::send_queue). Whoever posts sends
//! at once what the socket takes; the receiving thread later sends the rest. Nothing here
//! waits.

use crate::ids::{QueueId, Rank};
use crate::os::clock::monotonic_ns;
use crate::os::event::Epoll;
use crate::os::socket;
use crate::policy::acknowledge::{Batch, Flush};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::transport::payload::ChannelMessage;
use crate::transport::tcp::byte_carrier::{Ahead, ByteCarrier};
use crate::transport::tcp::pipes::Pipes;
use crate::transport::tcp::send_queue::{
    ByPage, Carrying, Dropped, Item, Outgoing, SMALL, SendQueue, Withheld, send,
};
use crate::wire::frame::Frame;
use crate::wire::message::Stream;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

/// Who is on the other side, before it has said so.
const UNKNOWN: u32 = u32::MAX;
/// A connection to a peer.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Set once the peer has proved who it is.
    fd: OnceLock<OwnedFd>,
    /// Its name in the poll set.
    pub(crate) token: u64,
    /// It leads to a rank of the same node, and carries descriptors.
    pub(crate) local: bool,
    peer: AtomicU32,
    /// The peer asks for nothing more on it.
    released: AtomicBool,
    /// It has been read to the end that the peer has made of it.
    read_out: AtomicBool,
    /// Something that settles a pair of devices was to go by it.
    settles_pairs: AtomicBool,
    /// How many connections with the peer this rank had lost before this one, and the peer.
    epoch: u64,
    epoch_of_peer: AtomicU64,
    out: Mutex<SendQueue>,
}

/// The peer has not said yet how many connections it has lost.
const UNSAID: u64 = u64::MAX;

/// The connection has ended or failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken;

/// What became of a request.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Posted {
    /// Requests are held back from now on, in a quick succession of small ones that share system
    /// calls.
    pub(crate) corked: bool,
    /// It followed soon after another one, at this time.
    pub(crate) soon_ns: Option<u64>,
}

/// Why something was not sent.
#[derive(Debug)]
pub(crate) enum Unsent<T> {
    /// The connection has ended or failed; what was to be sent fails with the rest.
    Broken,
    /// The connection is not used any more: it has to go by another one.
    Closed(T),
    /// What it was to arrive behind has been lost with another connection.
    Stale,
}

impl Connection {
    /// A connection that a rank of the same node has opened; it says first who it is.
    pub(crate) fn accepted(fd: OwnedFd, token: u64) -> Connection {
        let connection = Connection::new(token, 0, true);
        connection.peer.store(UNKNOWN, Ordering::Relaxed);
        connection.established(fd);
        connection
    }

    /// A connection to `peer` that is being made; what is sent meanwhile waits.
    pub(crate) fn new(token: u64, peer: u16, local: bool) -> Connection {
        Connection {
            fd: OnceLock::new(),
            token,
            local,
            peer: AtomicU32::new(peer.into()),
            released: AtomicBool::new(false),
            read_out: AtomicBool::new(false),
            settles_pairs: AtomicBool::new(false),
            epoch: 0,
            epoch_of_peer: AtomicU64::new(UNSAID),
            out: Mutex::default(),
        }
    }

    /// A connection to `peer`, of another node, with which this rank has lost so many before.
    pub(crate) fn between_nodes(
        token: u64,
        peer: u16,
        epoch: u64,
        pipes: &Arc<Pipes>,
        withheld: Withheld,
    ) -> Connection {
        let by_page = ByPage::through(pipes);
        let mut out = SendQueue { by_page, withheld, ..SendQueue::default() };
        // Ahead of all that goes beside the bytes.
        Frame::Epoch { count: epoch }.append_to(&mut out.going_back.beside);
        Connection { epoch, out: Mutex::new(out), ..Connection::new(token, peer, false) }
    }

    /// The peer can be reached by this socket.
    pub(crate) fn established(&self, fd: OwnedFd) {
        // Whoever makes connections sees to it that there is only one.
        let _ = self.fd.set(fd);
    }

    /// The socket, once there is one.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.get().map(AsFd::as_fd)
    }

    pub(crate) fn peer(&self) -> Option<u16> {
        u16::try_from(self.peer.load(Ordering::Relaxed)).ok()
    }

    pub(crate) fn set_peer(&self, peer: Rank) {
        self.peer.store(peer.0.into(), Ordering::Relaxed);
    }

    /// The peer asks for nothing more on it.
    pub(crate) fn note_release(&self) {
        self.released.store(true, Ordering::Relaxed);
    }

    /// Whether the peer asks for nothing more on it.
    pub(crate) fn is_released_by_peer(&self) -> bool {
        self.released.load(Ordering::Relaxed)
    }

    /// Nothing follows what has been received.
    pub(crate) fn note_read_out(&self) {
        self.read_out.store(true, Ordering::Relaxed);
    }

    /// Something that settles a pair of devices is about to be handed to it.
    pub(crate) fn note_pairing(&self) {
        // Relaxed: the lock of what it has to send orders it.
        self.settles_pairs.store(true, Ordering::Relaxed);
    }

    /// Whether what settles pairs of devices was handed to it.
    pub(crate) fn settles_pairs(&self) -> bool {
        self.settles_pairs.load(Ordering::Relaxed)
    }

    /// How many connections with the peer this rank had lost before this one.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How many the peer had lost before this one; `None` before it has said so.
    pub(crate) fn epoch_of_peer(&self) -> Option<u64> {
        Some(self.epoch_of_peer.load(Ordering::Relaxed)).filter(|count| *count != UNSAID)
    }

    /// The peer says how many it has lost.
    pub(crate) fn set_epoch_of_peer(&self, count: u64) {
        self.epoch_of_peer.store(count, Ordering::Relaxed);
    }

    fn out(&self) -> MutexGuard<'_, SendQueue> {
        self.out.lock()
    }

    /// Sends a frame that belongs to no stream, or leaves it to the receiving thread. `accepted`
    /// runs before, unless it has to go by another connection.
    pub(crate) fn send(
        &self,
        poll: &Epoll,
        item: Outgoing,
        accepted: impl FnOnce(),
    ) -> Result<(), Unsent<Outgoing>> {
        let mut out = self.out();
        if out.usage.is_let_go() {
            return Err(Unsent::Closed(item));
        }
        accepted();
        out.usage.note_asked();
        self.send_locked(poll, &mut out, item).map_err(|Broken| Unsent::Broken)
    }

    fn send_locked(&self, poll: &Epoll, out: &mut SendQueue, item: Outgoing) -> Result<(), Broken> {
        if out.usage.is_ending() {
            return Ok(());
        }
        out.push_control(item);
        self.flush_unless_full(poll, out)
    }

    /// Sends a request, or leaves it to the receiving thread. `accepted` runs before, unless it has
    /// to go by another connection.
    pub(crate) fn post(
        &self,
        poll: &Epoll,
        queue: QueueId,
        item: Item,
        accepted: impl FnOnce(),
    ) -> Result<Posted, Unsent<Item>> {
        let mut out = self.out();
        if out.usage.is_let_go() {
            return Err(Unsent::Closed(item));
        }
        accepted();
        out.usage.note_asked();
        let small = matches!(&item, Item::Put { put, .. } if put.size <= SMALL);
        let (cork, soon_ns) = if self.local { (false, None) } else { out.note_post(small) };
        self.post_locked(poll, &mut out, queue, item, cork).map_err(|Broken| Unsent::Broken)?;
        if !cork && !self.local {
            out.coalescing.on_sent(monotonic_ns());
        }
        let corked = cork && !std::mem::replace(&mut out.coalescing.announced, true);
        Ok(Posted { corked, soon_ns })
    }

    /// Sends a message of a channel to a rank of another node, or leaves it to the receiving
    /// thread. Its data is not needed any more then, unless it was lent. `None` if there is no room
    /// now; the receiving thread rings when there is. There is none on a socket for one that goes
    /// by a device only.
    ///
    /// # Safety
    /// The data is readable, and nobody else uses the slot until the message has been sent.
    pub(crate) unsafe fn post_message<'m>(
        &self,
        poll: &Epoll,
        mut message: ChannelMessage<'m>,
        by_device_only: bool,
    ) -> Result<Option<Posted>, Unsent<ChannelMessage<'m>>> {
        let mut out = self.out();
        if out.usage.is_let_go() {
            return Err(Unsent::Closed(message));
        }
        if out.usage.is_ending() {
            return Ok(Some(Posted::default()));
        }
        let small = message.put.size <= SMALL;
        if let Some(carrier) = out.carrying.other() {
            // SAFETY: as the caller says.
            match unsafe { carrier.write_ahead(&message) } {
                Ahead::Written => message.keep_head(),
                Ahead::Waits => return Ok(None),
                Ahead::GoesAlong => {}
            }
        } else if by_device_only {
            return Ok(None);
        }
        // On one that has broken it is lost with the rest.
        if self.fd().is_some()
            && out.is_full(&message)
            && self.flush_unless_full(poll, &mut out).is_ok()
            && out.is_full(&message)
        {
            return Ok(None);
        }
        out.usage.note_asked();
        let (cork, soon_ns) = out.note_post(small);
        // SAFETY: as the caller says.
        let left = unsafe { out.send_message(self.fd(), cork, message) };
        if left && !cork {
            self.flush_unless_full(poll, &mut out).map_err(|Broken| Unsent::Broken)?;
        }
        if !cork {
            out.coalescing.on_flush();
            out.coalescing.on_sent(monotonic_ns());
        }
        let corked = cork && !std::mem::replace(&mut out.coalescing.announced, true);
        Ok(Some(Posted { corked, soon_ns }))
    }

    /// Takes a small request that goes along with whatever is sent next, to share its system call.
    /// Whether it has to be said that something is held back, which is for a request that nothing
    /// may follow.
    pub(crate) fn post_along(
        &self,
        queue: QueueId,
        item: Item,
        followed: bool,
    ) -> Result<Posted, Unsent<Item>> {
        let mut out = self.out();
        if out.usage.is_let_go() {
            return Err(Unsent::Closed(item));
        }
        out.usage.note_asked();
        if !out.usage.is_ending() {
            out.append_item(queue, item);
        }
        // What it goes along with may not be posted any more, since the peer has died: nobody else
        // would find it on a connection whose end has been dealt with.
        if out.usage.is_broken() {
            return Err(Unsent::Broken);
        }
        let corked = !followed && !std::mem::replace(&mut out.coalescing.announced, true);
        Ok(Posted { corked, soon_ns: None })
    }

    /// Sends what was held back, if that has not gone along with something. Whether there is room
    /// now for which somebody may wait: the set does not tell of it any more.
    pub(crate) fn flush_corked(&self, poll: &Epoll) -> Result<bool, Broken> {
        let mut out = self.out();
        out.coalescing.announced = false;
        if out.is_idle() {
            return Ok(false);
        }
        let awaited = out.room.awaited;
        self.flush_locked(poll, &mut out)?;
        Ok(awaited && !out.room.awaited)
    }

    /// Drops requests of a queue from before this generation, of which nothing is on the wire.
    pub(crate) fn drop_purged(&self, poll: &Epoll, queue: QueueId, generation: u32) -> Dropped {
        let mut out = self.out();
        let dropped = out.drop_purged(queue, generation);
        if !dropped.is_empty() {
            // What waits behind them, as with answers.
            let _ = self.flush_unless_full(poll, &mut out);
        }
        dropped
    }

    /// Answers in a stream of the peer's.
    pub(crate) fn answer_in_stream(&self, poll: &Epoll, queue: QueueId, item: Item) {
        // As with other answers.
        let _ = self.post_locked(poll, &mut self.out(), queue, item, false);
    }

    fn post_locked(
        &self,
        poll: &Epoll,
        out: &mut SendQueue,
        queue: QueueId,
        item: Item,
        cork: bool,
    ) -> Result<(), Broken> {
        if out.usage.is_ending() {
            return Ok(());
        }
        out.append_item(queue, item);
        if cork { Ok(()) } else { self.flush_unless_full(poll, out) }
    }

    /// Puts of the peer's have been completed, some of them by refusing them: their acknowledgement
    /// travels along with what is sent next.
    pub(crate) fn delay_ack(&self, completed: Batch) {
        self.out().acks.on_completed(completed);
    }

    /// Acknowledges what has been completed, if `flush` says so; whether that is delayed.
    pub(crate) fn send_ack(&self, poll: &Epoll, flush: Flush) -> Result<bool, Broken> {
        let mut out = self.out();
        if out.acks.is_due(flush) {
            self.flush_unless_full(poll, &mut out)?;
            return Ok(false);
        }
        Ok(out.acks.is_pending())
    }

    /// Takes note that `puts` puts of this connection have been completed in all; gives the streams
    /// that they belong to.
    pub(crate) fn acknowledged(&self, puts: u64) -> impl Iterator<Item = (Stream, u32)> + use<> {
        self.out().unacknowledged.acknowledge(puts)
    }

    /// Sends what there is room for.
    pub(crate) fn flush(&self, poll: &Epoll) -> Result<(), Broken> {
        self.flush_locked(poll, &mut self.out())
    }

    /// The same where something is to be sent in addition: once there is no room, the receiving
    /// thread is told when there is.
    fn flush_unless_full(&self, poll: &Epoll, out: &mut SendQueue) -> Result<(), Broken> {
        if out.room.awaited && !out.usage.is_broken() {
            Ok(())
        } else {
            self.flush_locked(poll, out)
        }
    }

    fn flush_locked(&self, poll: &Epoll, out: &mut SendQueue) -> Result<(), Broken> {
        if out.usage.is_broken() {
            return Err(Broken);
        }
        let Some(fd) = self.fd() else { return Ok(()) };
        let mut blocked = false;
        out.coalescing.on_flush();
        loop {
            if out.going_back.has_any_beside() {
                blocked |= self.send_beside(poll, fd, out)?;
            }
            let ready = out.go_on_by_next();
            out.fill_wire();
            let waits = matches!(ready, Ok(false)) || blocked || out.wire.is_empty();
            if waits && ready.is_ok() {
                break;
            }
            match ready.and_then(|_| send(fd, out)) {
                Ok(()) => {
                    // Nobody waits for room in the socket any more.
                    if out.has_switched()
                        && out.room.awaited
                        && poll.change(fd, self.token, false).is_ok()
                    {
                        out.room.awaited = false;
                    }
                }
                Err(error) if socket::is_full(&error) => blocked = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    out.usage.note_broken();
                    // So that the receiving thread comes to its end, behind what was received.
                    socket::shut_down(fd);
                    return Err(Broken);
                }
            }
        }
        if !blocked && !out.carrying.is_held() {
            out.room.note_drained();
            if out.usage.is_last() && out.carrying.other().is_none_or(ByteCarrier::is_drained) {
                socket::end_sending(fd);
            }
        }
        if !out.carrying.is_by_socket() {
            // Who makes room flushes.
            out.room.awaited = blocked;
        } else if blocked && out.room.direct_poll {
            // Without a place in the set the next one that puts it back asks for room.
            out.room.awaited = true;
            self.rejoin_epoll_locked(poll, out);
        } else if blocked != out.room.awaited && poll.change(fd, self.token, blocked).is_ok() {
            out.room.awaited = blocked;
        }
        Ok(())
    }

    /// Takes the socket out of the set, where each arrival would cost the kernel a call of it:
    /// the receiving thread looks at it by receiving. False if it has to stay.
    pub(crate) fn leave_epoll(&self, poll: &Epoll) -> bool {
        let mut out = self.out();
        let Some(fd) =
            self.fd().filter(|_| !out.room.awaited && !out.usage.is_forgotten() && !self.local)
        else {
            return false;
        };
        poll.remove(fd);
        out.room.direct_poll = true;
        true
    }

    /// Whether something waits for room in the socket, or may: somebody is sending.
    pub(crate) fn wants_room(&self) -> bool {
        self.out.try_lock().is_none_or(|out| out.room.awaited)
    }

    /// Puts it back; false if the kernel has no room for it now.
    pub(crate) fn rejoin_epoll(&self, poll: &Epoll) -> bool {
        self.rejoin_epoll_locked(poll, &mut self.out())
    }

    fn rejoin_epoll_locked(&self, poll: &Epoll, out: &mut SendQueue) -> bool {
        if let Some(fd) = self.fd().filter(|_| out.room.direct_poll && !out.usage.is_forgotten()) {
            out.room.direct_poll = poll.add_again(fd, self.token, out.room.awaited).is_err();
            return !out.room.direct_poll;
        }
        true
    }

    /// Whether everything has been handed to the kernel, or has arrived where a device carries it.
    pub(crate) fn is_drained(&self) -> bool {
        let out = self.out();
        let nothing_waits = out.is_idle() && out.withheld.is_empty();
        nothing_waits
            && !out.carrying.is_held()
            && out.carrying.other().is_none_or(ByteCarrier::is_drained)
    }

    /// Whether data waits on it for another carrier than its socket.
    pub(crate) fn withholds(&self) -> bool {
        !self.out().withheld.is_empty()
    }

    /// Forgets data that waits for another carrier, and all that waits with it where this rank has
    /// to say goodbye; whether there was any.
    pub(crate) fn forget_withheld(&self, poll: &Epoll) -> bool {
        let mut out = self.out();
        let mut had_any = !out.withheld.take().is_empty();
        if out.usage.is_ending() && out.carrying.is_held() {
            // What is left goes beside the bytes, in the middle of which the peer stands.
            out.give_up();
            had_any = true;
        }
        if had_any {
            // Where it is broken it ends anyway.
            let _ = self.flush_unless_full(poll, &mut out);
        }
        had_any
    }

    /// Whether another carrier has what follows.
    pub(crate) fn is_carried(&self) -> bool {
        self.out().carrying.other().is_some()
    }

    /// What carries its bytes has failed, and they cannot go back: it comes to its end.
    pub(crate) fn abort(&self) {
        if let Some(fd) = self.fd() {
            socket::shut_down(fd);
        }
    }
}

mod ending;
mod frames;
mod going_back;
#[cfg(test)]
mod tests;
