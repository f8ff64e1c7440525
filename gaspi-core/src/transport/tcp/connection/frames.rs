//! Frames that belong to no stream. Where nothing waits that would go before it, a frame goes
//! straight to what carries the connection.

use super::{Broken, Connection, Unsent};
use crate::os::event::Epoll;
use crate::os::socket::{self, Piece};
use crate::transport::tcp::send_queue::{Carrying, Encode, Outgoing, SendQueue};

impl Connection {
    /// Sends a frame as [`send`](Connection::send) does; `has_data` says that it carries data of
    /// the program, which sockets may not have to.
    pub(crate) fn send_frame<'f, F: Encode>(
        &self,
        poll: &Epoll,
        (frame, has_data): (&'f F, bool),
        accepted: impl FnOnce(),
    ) -> Result<(), Unsent<(&'f F, bool)>> {
        let mut out = self.out();
        if out.usage.is_let_go() {
            return Err(Unsent::Closed((frame, has_data)));
        }
        accepted();
        out.usage.note_asked();
        let sent = self.send_frame_locked(poll, &mut out, frame, has_data);
        sent.map_err(|Broken| Unsent::Broken)
    }

    /// The same for the answer to a frame that came on this connection; who leaves answers nobody.
    pub(crate) fn answer_frame(&self, poll: &Epoll, frame: &impl Encode, has_data: bool) {
        // If the connection has broken, what came before its end is still to be read.
        let _ = self.send_frame_locked(poll, &mut self.out(), frame, has_data);
    }

    fn send_frame_locked(
        &self,
        poll: &Epoll,
        out: &mut SendQueue,
        frame: &impl Encode,
        has_data: bool,
    ) -> Result<(), Broken> {
        let open = is_open(out);
        let socket = self.fd().filter(|_| open && is_open_to_socket(out, has_data));
        let carried = open && out.carrying.other().is_some() && !out.acks.goes_along();
        if socket.is_none() && !carried {
            let item = if has_data { Outgoing::with_data(frame) } else { Outgoing::new(frame) };
            return self.send_locked(poll, out, item);
        }
        frame.append_to(&mut out.wire);
        out.going_back.has_data = has_data;
        if socket.is_some() {
            out.acknowledge();
        }
        let pieces = [Piece::of(&out.wire), Piece::of(&[])];
        // SAFETY: bytes that are owned here, and none.
        let sent = unsafe {
            match (socket, out.carrying.other()) {
                (Some(fd), _) => socket::send(fd, pieces, &[]),
                (None, Some(carrier)) => carrier.send(pieces, has_data),
                (None, None) => Ok(0),
            }
        };
        // What is wrong, if anything is, shows when the rest is sent.
        out.sent = sent.unwrap_or(0);
        if out.sent == out.wire.len() {
            out.forget_wire();
            return Ok(());
        }
        self.flush_locked(poll, out)
    }
}

/// Whether nothing waits that would go before a frame, and nothing ends.
#[inline]
fn is_open(out: &SendQueue) -> bool {
    let nothing_waits = out.is_idle() && out.body.is_none();
    nothing_waits && !out.usage.is_broken() && !out.usage.is_ending() && !out.room.awaited
}

/// Whether the socket carries all, and may carry this.
#[inline]
fn is_open_to_socket(out: &SendQueue, has_data: bool) -> bool {
    let withheld = has_data && out.withheld.withholds();
    matches!(out.carrying, Carrying::Socket) && !withheld
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::acknowledge::{Batch, Completed};
    use crate::sync::Mutex;
    use crate::transport::payload::ChannelMessage;
    use crate::transport::tcp::byte_carrier::{Ahead, ByteCarrier, Kept};
    use crate::transport::tcp::send_queue::Withheld;
    use crate::wire::frame::Frame;
    use std::io;
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::Arc;

    /// Takes as many bytes as it has room for, and notes them.
    #[derive(Debug, Default)]
    struct Narrow {
        room: Mutex<usize>,
        taken: Mutex<Vec<u8>>,
    }

    impl ByteCarrier for Narrow {
        fn number(&self) -> u32 {
            7
        }

        fn attempt(&self) -> u32 {
            1
        }

        unsafe fn send(&self, pieces: [Piece; 2], _: bool) -> io::Result<usize> {
            let (mut room, mut taken) = (self.room.lock(), self.taken.lock());
            let before = taken.len();
            for piece in pieces {
                let len = piece.len.min(*room);
                // SAFETY: as the caller says.
                taken.extend(unsafe { std::slice::from_raw_parts(piece.pointer, len) });
                *room -= len;
            }
            match taken.len() - before {
                0 => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
                sent => Ok(sent),
            }
        }

        unsafe fn write_ahead(&self, _: &ChannelMessage<'_>) -> Ahead {
            Ahead::GoesAlong
        }

        fn is_drained(&self) -> bool {
            true
        }

        fn take_back(&self, messages: u64) -> Option<Vec<Kept>> {
            (messages == 0).then(Vec::new)
        }
    }

    fn bytes_of(frames: &[Frame]) -> Vec<u8> {
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.append_to(&mut bytes));
        bytes
    }

    /// A connection, and the other end of its socket.
    fn connected(name: &str, poll: &Epoll) -> (Connection, OwnedFd) {
        let name = format!("gaspi-connection-{name}-{}", std::process::id());
        let listener = socket::listen(&name).expect("listener");
        let client = socket::connect(&name).expect("connection");
        let server = socket::accept(listener.as_fd());
        let server = server.expect("accept").expect("one waits");
        let connection = Connection::between_nodes(1, 1, 0, &Arc::default(), Withheld::default());
        connection.established(client);
        connection.flush(poll).expect("sent");
        (connection, server)
    }

    /// A connection that is carried, and what takes its bytes; the socket's other end stays open.
    fn carried(name: &str, poll: &Epoll) -> (Connection, Arc<Narrow>, OwnedFd) {
        let (connection, server) = connected(name, poll);
        let carrier = Arc::new(Narrow::default());
        connection.out().carrying = Carrying::Other(Arc::clone(&carrier) as Arc<dyn ByteCarrier>);
        (connection, carrier, server)
    }

    #[test]
    fn frames_keep_their_order_whether_they_go_at_once_or_wait_for_room() {
        let poll = Epoll::new().expect("a set");
        let (connection, carrier, _server) = carried("frames", &poll);
        let frames: Vec<Frame> = (1..6).map(|request| Frame::Ping { request }).collect();
        let len = bytes_of(&frames[..1]).len();
        let send = |at: usize| {
            connection.send_frame(&poll, (&frames[at], false), || ()).expect("it is usable");
        };
        *carrier.room.lock() = len;
        send(0);
        assert!(connection.is_drained());
        // The next one does not fit as a whole, the one behind it not at all.
        *carrier.room.lock() = len - 1;
        send(1);
        send(2);
        assert!(!connection.is_drained() && connection.wants_room());
        *carrier.room.lock() = usize::MAX;
        connection.flush(&poll).expect("there is room");
        send(3);
        assert!(connection.is_drained() && !connection.wants_room());
        assert_eq!(*carrier.taken.lock(), bytes_of(&frames[..4]));
    }

    #[test]
    fn an_acknowledgement_that_waits_goes_along_with_the_next_frame() {
        let poll = Epoll::new().expect("a set");
        let (connection, carrier, _server) = carried("along", &poll);
        *carrier.room.lock() = usize::MAX;
        let mut completed = Batch::default();
        let put = Completed::OfChannel { notified: true, in_flight: true, awaited: false };
        completed.add(put);
        connection.delay_ack(completed);
        let ping = Frame::Ping { request: 1 };
        connection.answer_frame(&poll, &ping, false);
        assert_eq!(*carrier.taken.lock(), bytes_of(&[ping, Frame::Ack { puts: 1 }]));
    }

    /// All that has come to a socket.
    fn received(socket: &OwnedFd) -> Vec<u8> {
        let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
        loop {
            let piece = Piece { pointer: buffer.as_mut_ptr(), len: buffer.len() };
            // SAFETY: the piece is the buffer.
            match unsafe { socket::receive_bytes(socket.as_fd(), piece) } {
                Ok(received) => all.extend_from_slice(&buffer[..received]),
                Err(error) if socket::is_full(&error) => return all,
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn frames_by_a_socket_keep_their_order_when_it_is_full() {
        let poll = Epoll::new().expect("a set");
        let (connection, server) = connected("by-socket", &poll);
        let mut came = received(&server);
        let hello = came.len();
        poll.add(connection.fd().expect("a socket"), connection.token).expect("added");
        let mut sent = Vec::new();
        while connection.is_drained() {
            sent.push(Frame::Ping { request: sent.len() as u64 });
            let last = &sent[sent.len() - 1];
            connection.send_frame(&poll, (last, false), || ()).expect("it is usable");
        }
        let mut completed = Batch::default();
        completed.add(Completed::OfChannel { notified: true, in_flight: true, awaited: false });
        connection.delay_ack(completed);
        for request in 0..3 {
            connection.answer_frame(&poll, &Frame::Ping { request }, false);
            sent.push(Frame::Ping { request });
        }
        while !connection.is_drained() {
            came.extend(received(&server));
            connection.flush(&poll).expect("there is room");
        }
        sent.push(Frame::Ack { puts: 1 });
        let last = Frame::Ping { request: 9 };
        connection.send_frame(&poll, (&last, false), || ()).expect("it is usable");
        sent.push(last);
        came.extend(received(&server));
        assert!(came[hello..] == bytes_of(&sent), "frames are missing, or in another order");
    }
}
