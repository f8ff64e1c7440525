//! What a connection acknowledges, and when its socket is in the poll set.

use super::*;
use crate::ids::{GroupId, NotificationId, SegmentId};
use crate::os::socket::Piece;
use crate::policy::acknowledge::Completed;
use crate::wire::frame::Encode;
use crate::wire::message::{Commit, GroupMessage, LastStep, Message, Put, RemoteAddress};
use std::cell::Cell;

#[test]
fn what_nobody_waits_for_is_acknowledged_at_the_second_tick() {
    let connection = Connection::between_nodes(1, 1, 0, &Arc::default(), Withheld::default());
    let poll = Epoll::new().expect("a set");
    let delays = |flush| connection.send_ack(&poll, flush).expect("not broken");
    assert!(!delays(Flush::All), "there is nothing to acknowledge");
    let complete = |put| {
        let mut completed = Batch::default();
        completed.add(put);
        connection.delay_ack(completed);
    };
    complete(Completed::OfChannel { notified: true, in_flight: false, awaited: false });
    assert!(delays(Flush::Awaited) && delays(Flush::Undelayed { tick: false }));
    assert!(delays(Flush::Undelayed { tick: true }) && !delays(Flush::Undelayed { tick: true }));
    // With something for which somebody may wait it goes out.
    complete(Completed::OfQueue { notified: false, size: 8 });
    assert!(!delays(Flush::Awaited) && !delays(Flush::Undelayed { tick: false }));
}

#[test]
fn a_request_in_front_of_another_fails_where_the_stream_has_ended_meanwhile() {
    let connection = Connection::between_nodes(1, 1, 0, &Arc::default(), Withheld::default());
    assert!(connection.shut_down().is_empty());
    let stream = Stream { queue: QueueId(0), generation: 0 };
    let (notification, segment) = (NotificationId(0), SegmentId(0));
    let remote = RemoteAddress { segment, generation: 1, offset: 0 };
    let put = Put { stream, remote, size: 0, last: true, notification, value: 1 };
    let posted = connection.post_along(QueueId(0), Item::put(put, None), true);
    assert!(matches!(posted, Err(Unsent::Broken)));
    // Who is told so ends it once more, for what was posted since.
    assert_eq!(connection.shut_down(), [(stream, 1)]);
}

#[test]
fn what_awaits_an_answer_is_noted_only_on_the_connection_that_takes_it() {
    let connection = Connection::between_nodes(1, 1, 0, &Arc::default(), Withheld::default());
    let poll = Epoll::new().expect("a set");
    let noted = Cell::new(0);
    let ask = || {
        let ping = Outgoing::new(&Frame::Ping { request: 1 });
        connection.send(&poll, ping, || noted.set(noted.get() + 1))
    };
    assert!(ask().is_ok() && noted.get() == 1);
    assert!(!connection.let_go(&poll, || false), "it has not been sent");
    connection.out().control.clear();
    assert!(!connection.let_go(&poll, || noted.get() > 0), "its answer has not come");
    assert!(ask().is_ok() && noted.get() == 2);
    connection.out().control.clear();
    assert!(connection.let_go(&poll, || false));
    // Its end may come any time now, and would fail what is noted on it.
    assert!(matches!(ask(), Err(Unsent::Closed(_))));
    assert_eq!(noted.get(), 2);
}

/// What a set says about the connection now.
fn told(poll: &Epoll) -> Option<(bool, bool)> {
    let mut events = Vec::new();
    poll.wait(&mut events, 0);
    events.first().map(|event| (event.readable, event.writable))
}

#[test]
fn a_socket_that_is_apart_is_in_the_set_again_once_something_waits_for_room_in_it() {
    let name = format!("gaspi-connection-apart-{}", std::process::id());
    let listener = socket::listen(&name).expect("listener");
    let client = socket::connect(&name).expect("connection");
    let server = socket::accept(listener.as_fd()).expect("accept").expect("one waits");
    let connection = Connection::between_nodes(1, 1, 0, &Arc::default(), Withheld::default());
    connection.established(client);
    let poll = Epoll::new().expect("set");
    poll.add(connection.fd().expect("socket"), 1).expect("added");
    connection.flush(&poll).expect("sent");
    // SAFETY: the piece is a constant.
    unsafe { socket::send(server.as_fd(), [Piece::of(b"news"), Piece::of(b"")], &[]) }
        .expect("send");
    assert_eq!(told(&poll), Some((true, false)));
    assert!(connection.leave_epoll(&poll));
    assert_eq!(told(&poll), None);
    assert!(connection.rejoin_epoll(&poll));
    assert_eq!(told(&poll), Some((true, false)));
    assert!(connection.leave_epoll(&poll));
    while connection.is_drained() {
        let ping = Outgoing::new(&Frame::Ping { request: 1 });
        connection.send(&poll, ping, || ()).expect("it is usable");
    }
    assert_eq!(told(&poll), Some((true, false)), "there is no room yet");
    assert!(connection.wants_room() && !connection.leave_epoll(&poll));
    let mut bytes = vec![0u8; 1 << 20];
    let piece = Piece { pointer: bytes.as_mut_ptr(), len: bytes.len() };
    // SAFETY: the piece is writable.
    while unsafe { socket::receive_bytes(server.as_fd(), piece) }.is_ok() {}
    assert_eq!(told(&poll), Some((true, true)));
    assert_eq!(connection.flush_corked(&poll), Ok(true), "nobody else tells of the room");
    assert_eq!(connection.flush_corked(&poll), Ok(false));
    assert!(connection.is_drained() && !connection.wants_room());
    // Nobody has it in a set who has done with it.
    assert!(connection.leave_epoll(&poll));
    connection.shut_down();
    assert!(connection.rejoin_epoll(&poll));
    assert_eq!(told(&poll), None);
}

/// A connection that has its socket, the poll set of that, and the other side.
fn with_peer() -> (Connection, Epoll, OwnedFd) {
    let (client, server) = socket::pair().expect("pair");
    let connection = Connection::between_nodes(1, 1, 0, &Arc::default(), Withheld::default());
    connection.established(client);
    let poll = Epoll::new().expect("set");
    poll.add(connection.fd().expect("socket"), 1).expect("added");
    // What each connection begins with.
    connection.flush(&poll).expect("not broken");
    assert!(!come(&server).is_empty());
    (connection, poll, server)
}

/// What has come to a peer.
fn come(peer: &OwnedFd) -> Vec<u8> {
    let mut buffer = [0u8; 1024];
    let piece = Piece { pointer: buffer.as_mut_ptr(), len: buffer.len() };
    // SAFETY: the buffer is writable.
    let len = unsafe { socket::receive_bytes(peer.as_fd(), piece) }.unwrap_or(0);
    buffer[..len].to_vec()
}

#[test]
fn a_goodbye_goes_by_the_socket_once_what_waits_for_a_pair_is_given_up() {
    let (connection, poll, server) = with_peer();
    // The peer stands in the middle of this.
    connection.out().wire = b"the rest of a frame".to_vec();
    connection.out().carrying = Carrying::Waiting(7);
    connection.say_goodbye(&poll, &[]);
    assert_eq!(come(&server), [], "it goes behind what waits");
    assert!(!connection.is_drained());
    assert!(connection.forget_withheld(&poll), "something has waited");
    assert_eq!(come(&server), Frame::Goodbye.encode());
    assert!(!connection.forget_withheld(&poll), "nothing waits any more");
}

/// A connection may come up while its rank is saying goodbye on those that it has: whoever hears
/// of the leave by it, and passes that on, has to know at which steps the rank has arrived.
#[test]
fn a_goodbye_follows_the_last_steps_on_each_connection() {
    let last = |group, step| {
        let (commit, digest) = (Commit::default(), 0);
        LastStep { group: GroupId(group), step, finished: true, commit, digest }
    };
    let steps = [last(0, 7), last(3, 9)];
    let mut wanted = Vec::new();
    for last in steps {
        Message::Group(GroupMessage::Leaving(last)).append_to(&mut wanted);
    }
    Frame::Goodbye.append_to(&mut wanted);
    let (connection, poll, server) = with_peer();
    connection.say_goodbye(&poll, &steps);
    assert_eq!(come(&server), wanted);
    // Who finds a further connection at the same time says it too.
    connection.say_goodbye(&poll, &steps);
    assert_eq!(come(&server), []);
    // So it is on one that gets its socket behind that.
    let early = Connection::between_nodes(1, 1, 0, &Arc::default(), Withheld::default());
    early.say_goodbye(&poll, &steps);
    let (client, server) = socket::pair().expect("pair");
    early.established(client);
    early.flush(&poll).expect("not broken");
    assert!(come(&server).ends_with(&wanted));
}
