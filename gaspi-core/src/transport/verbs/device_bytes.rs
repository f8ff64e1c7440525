//! The sending half of a connection whose bytes a device carries, and how it comes to that.
//!
//! Invariant: what was posted is kept until it is acknowledged, or taken back.

use super::byte_stream::KeptPlace;
use super::ended::Again;
use super::kept::KeptBytes;
use super::lane::{Lane, LaneState};
use super::queue_pair::PostedBytes;
use super::{STREAM, Verbs};
use crate::ids::Rank;
use crate::os::event::Wakeup;
use crate::os::socket::Piece;
use crate::sync::{AtomicBool, Ordering};
use crate::transport::payload::ChannelMessage;
use crate::transport::tcp::byte_carrier::{Ahead, ByteCarrier, Kept};
use crate::transport::tcp::connection::Connection;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// The sending half of a connection.
#[derive(Debug)]
pub(super) struct DeviceBytes {
    /// The name of the connection.
    pub(super) token: u64,
    pub(super) lane: Arc<Lane>,
    /// Of the pair: another one does not carry on.
    pub(super) attempt: u32,
    pub(super) number: u32,
    /// Of the progress thread, since nobody else may see when there is room.
    pub(super) wakeup: Arc<Wakeup>,
    /// Of the device: whether somebody has to look at its lanes.
    pub(super) has_stalled: Arc<AtomicBool>,
    pub(super) kept: Arc<KeptPlace>,
    /// Whether no socket may have what it keeps.
    pub(super) by_next: bool,
}

impl DeviceBytes {
    /// Whether the pair is no more.
    fn is_gone(&self, state: &LaneState) -> bool {
        state.pair.is_none() || state.pairing.attempt() != self.attempt
    }

    /// The device has refused a request: the pair is to be taken down.
    fn fail(&self, state: &mut LaneState, reason: &str) {
        state.note_failure(reason, Again::AtOnce);
        self.has_stalled.store(true, Ordering::Release);
        self.wakeup.wake();
    }

    /// Has the connection flushed when something has ended.
    fn wait(&self) {
        if !self.lane.user.wait() {
            self.wakeup.wake();
        }
    }
}

impl ByteCarrier for DeviceBytes {
    fn number(&self) -> u32 {
        self.number
    }

    fn attempt(&self) -> u32 {
        self.attempt
    }

    unsafe fn send(&self, pieces: [Piece; 2], has_data: bool) -> io::Result<usize> {
        let full = || Err(io::Error::from_raw_os_error(libc::EAGAIN));
        let mut state = self.lane.lock();
        if !state.is_up_since(self.attempt) {
            if self.is_gone(&state) && !self.lane.user.has_left(self.attempt) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            // Until the peer has said what it has handled.
            return full();
        }
        // SAFETY: as the caller says.
        let posted = unsafe { state.post_bytes((self.number, has_data), pieces) };
        if state.has_failed() {
            self.has_stalled.store(true, Ordering::Release);
            self.wakeup.wake();
        }
        match posted {
            Ok(0) => {
                // Where this fails the completion tells.
                let _ = state.signal();
                self.wait();
                full()
            }
            Ok(sent) => Ok(sent),
            Err(reason) => {
                self.fail(&mut state, &reason);
                full()
            }
        }
    }

    unsafe fn write_ahead(&self, message: &ChannelMessage<'_>) -> Ahead {
        if message.by_device.is_none() {
            return Ahead::GoesAlong;
        }
        let size = message.data.len as u64;
        let admitted = |state: &mut LaneState| {
            // What is wrong with the pair shows when the message is sent.
            let up = state.is_up_since(self.attempt);
            let admitted = if up { state.admits(size) } else { Ahead::GoesAlong };
            if admitted == Ahead::Waits {
                self.wait();
            }
            admitted
        };
        let first = admitted(&mut self.lane.lock());
        if first != Ahead::Written {
            return first;
        }
        // Held until it is posted: a delete of its segment waits for what is posted before.
        let in_place = message.in_place();
        // Copied without the lock.
        // SAFETY: as the caller says.
        let Some(data) = (unsafe { LaneState::data_of(self.number, message, in_place.as_ref()) })
        else {
            return Ahead::GoesAlong;
        };
        let mut state = self.lane.lock();
        match admitted(&mut state) {
            Ahead::Written => match state.post_data(&mut Some(data)) {
                Ok(()) => Ahead::Written,
                Err(reason) => {
                    self.fail(&mut state, &reason);
                    Ahead::GoesAlong
                }
            },
            other => other,
        }
    }

    fn is_drained(&self) -> bool {
        let mut state = self.lane.lock();
        if self.is_gone(&state) {
            // What was posted and did not arrive goes by the socket, or never does.
            let kept_none = self.kept.lock().as_ref().is_none_or(KeptBytes::is_empty);
            return kept_none && self.lane.user.ahead.is_empty();
        }
        let drained = state.has_ended_all();
        if !drained {
            let _ = state.signal();
            self.wait();
        }
        drained
    }

    fn take_back(&self, messages: u64) -> Option<Vec<Kept>> {
        let kept = match self.kept.lock().take() {
            Some(kept) => kept.behind(messages)?,
            // Nothing was posted.
            None if messages == 0 => VecDeque::new(),
            None => return None,
        };
        let all = kept.into_iter();
        Some(if self.by_next {
            self.lane.user.ahead.keep(all)
        } else {
            all.map(Kept::from).collect()
        })
    }

    fn leave_to_socket(&self) {
        self.lane.user.forget(self.token);
    }

    fn write_kept(&self) -> io::Result<bool> {
        while let Some(mut data) = self.lane.user.ahead.take() {
            data.number = self.number;
            let payload = data.payload.behind(0);
            // Held until it is posted, as above.
            let accepts = payload.accept();
            let mut state = self.lane.lock();
            let up = state.is_up_since(self.attempt);
            let admitted = if up { state.admits(data.put.size) } else { Ahead::Waits };
            if !*accepts || admitted == Ahead::GoesAlong {
                // What announces it may not go ahead of it.
                self.lane.user.ahead.put_first(data);
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            let mut left = Some(data);
            if admitted == Ahead::Waits {
                // Where it is not up, until the peer has said what it has handled.
                if up {
                    self.wait();
                }
            } else if let Err(reason) = state.post_data(&mut left) {
                self.fail(&mut state, &reason);
            }
            if let Some(data) = left {
                self.lane.user.ahead.put_first(data);
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl LaneState {
    /// Posts bytes of a connection, as many as there is room for; how many.
    ///
    /// # Errors
    /// What the device says.
    ///
    /// # Safety
    /// The pieces are readable.
    pub(super) unsafe fn post_bytes(
        &mut self,
        (number, has_data): (u32, bool),
        mut pieces: [Piece; 2],
    ) -> Result<usize, String> {
        let mut sent = 0;
        while pieces[0].len + pieces[1].len > 0 && self.room() > 0 {
            let (id, freed) = (self.direct.next(), self.direct.freed());
            let signalled = self.is_signalled(self.room());
            let Some(pair) = &mut self.pair else { return Err("there is no pair".to_owned()) };
            let along = self.posted.along(id, pair.limits().depth);
            // SAFETY: as the caller says.
            let posted =
                unsafe { pair.post_bytes((id, freed), (number, pieces), signalled, along) };
            let PostedBytes { size, len, signalled, buffer } = match posted {
                Ok(Some(posted)) => posted,
                Ok(None) => break,
                // What was posted before is kept, as what is under way.
                Err(reason) if sent > 0 => {
                    self.note_failure(&reason, Again::AtOnce);
                    break;
                }
                Err(reason) => return Err(reason),
            };
            self.direct.posted(signalled);
            self.posted.note(id, (number, has_data), (len, buffer));
            sent += size;
            let first = size.min(pieces[0].len);
            pieces = [pieces[0].behind(first), pieces[1].behind(size - first)];
        }
        Ok(sent)
    }
}

impl Verbs<'_> {
    /// For the progress thread: has the device carry connections that it does not yet.
    pub(super) fn carry_connections(self) {
        let usable = self.table.condition.is_usable();
        let wanted = self.table.device.carries_messages() && (usable || self.may_continue());
        if !wanted || !self.stream.connections.take_news() {
            return;
        }
        self.forget_ended();
        for connection in self.stream.remote(self.up) {
            let Some(peer) = connection.peer().map(Rank).filter(|_| connection.fd().is_some())
            else {
                continue;
            };
            let lane = self.table.lane(STREAM, peer);
            // What waits for the next pair waits for no port, but for an end of the attempt.
            let tries = usable || lane.user.continues(connection.token);
            if self.stream.is_suspected(peer) || !tries {
                continue;
            }
            let failed = lane.user.failures.lock().are_too_many();
            // What waits for a pair may use one that the peer has tried to make once more. Asked
            // before the lane is locked: who sends locks the connection first.
            let waits = failed && connection.withholds();
            let state = lane.lock();
            let attempt = state.pairing.attempt();
            if failed && !(state.pairing.is_up() && waits) {
                continue;
            }
            if state.pairing.is_up() && lane.shown.attempts.is_lost(attempt) {
                // It went with an earlier connection, and is about to be taken down.
                self.stream.connections.note_news();
            } else if state.pairing.is_up() {
                drop(state);
                self.carry(&connection, peer, attempt);
            } else {
                self.begin(lane, state);
            }
        }
    }

    fn carry(self, connection: &Arc<Connection>, peer: Rank, attempt: u32) {
        let new = || Arc::new(Lane::new(STREAM, peer));
        let lane = self.table.place(STREAM, peer).share_or_init(new);
        if self.has_to_wait(&lane, connection) {
            return;
        }
        let token = connection.token;
        if !lane.user.continues(token) {
            // What an earlier one has left is of no use to this one.
            lane.user.ahead.forget();
        }
        let mut of = lane.user.of.lock();
        let (number, kept) = (of.number + 1, Arc::default());
        (of.token, of.number, of.kept) = (Some(token), number, Arc::downgrade(&kept));
        drop(of);
        let by_next = self.table.has_to_carry_messages();
        let wakeup = Arc::clone(&self.stream.sets.wakeup);
        let has_stalled = Arc::clone(&self.table.has_stalled);
        let bytes = DeviceBytes {
            token,
            lane: Arc::clone(&lane),
            attempt,
            number,
            wakeup,
            has_stalled,
            kept,
            by_next,
        };
        if connection.carry_by(&self.stream.sets.data, Arc::new(bytes)) {
            let state = lane.lock();
            let is_gone = state.pair.is_none() || state.pairing.attempt() != attempt;
            // Another pair may carry it, once it is back on its socket, or has to go on with it.
            lane.user.settle(token, is_gone, by_next);
            drop(state);
            if connection.is_by_socket_alone() {
                // It has gone back already.
                lane.user.forget(token);
            }
            // Messages may wait for that.
            self.up.ranks().wake_own();
        } else {
            lane.user.of.lock().token = None;
            if connection.is_sending_again() {
                // Once that has been sent.
                self.stream.connections.note_news();
            }
        }
    }
}
