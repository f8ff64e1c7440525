//! What a stream to a peer sends, in which order and in which pieces.

use super::*;
use crate::config::CHANNELS;
use crate::ids::{NotificationId, SegmentId};
use crate::policy::acknowledge::{Batch, Completed};
use crate::segment::{Init, Segment, Shape};
use crate::transport::payload::UserBuffer;
use crate::transport::tcp::byte_carrier::{Ahead, ByteCarrier, Kept};
use crate::wire::message::Message;

#[test]
fn descriptors_stay_with_their_frame_while_others_queue_up_behind_it() {
    let descriptor = crate::os::event::Wakeup::new().expect("descriptor");
    let frame = Outgoing::with_descriptors(&Message::Kill, &[descriptor.as_fd()]).expect("frame");
    let mut out = SendQueue::default();
    out.control.push_back(frame);
    out.refill();
    // The socket was full, and another frame came.
    out.control.push_back(Outgoing::new(&Frame::Ping { request: 1 }));
    out.refill();
    assert_eq!(out.descriptors.len(), 1);
    let mut bytes = Vec::new();
    Message::Kill.append_to(&mut bytes);
    Frame::Ping { request: 1 }.append_to(&mut bytes);
    assert_eq!(out.wire, bytes);
}

#[test]
fn acknowledgements_go_out_before_a_request_that_shares_their_system_call() {
    let mut completed = Batch::default();
    (0..3).for_each(|_| completed.add(Completed::OfQueue { notified: true, size: 8 }));
    let mut out = SendQueue::default();
    out.acks.on_completed(completed);
    out.append_item(QueueId(0), Item::Frame(Frame::Ping { request: 1 }));
    let mut bytes = Vec::new();
    Frame::Ack { puts: 3 }.append_to(&mut bytes);
    Frame::Ping { request: 1 }.append_to(&mut bytes);
    assert_eq!(out.wire, bytes);
    assert!(!out.acks.is_pending());
}

#[test]
fn what_was_purged_is_not_sent_unless_it_has_begun() {
    let stream = |queue, generation| Stream { queue: QueueId(queue), generation };
    let remote = RemoteAddress { segment: SegmentId(1), generation: 0, offset: 0 };
    let of = |stream| {
        let (notification, value) = (NotificationId(0), 0);
        Put { remote, size: 0, stream, notification, value, last: true }
    };
    let put = |stream| Item::put(of(stream), None);
    let get = |request, stream| Item::Frame(Frame::Get { request, stream, remote, size: 8 });
    let mut out = SendQueue::default();
    // Something is in the way of all of them.
    out.control.push_back(Outgoing::new(&Frame::Ping { request: 1 }));
    let begun =
        Item::Put { put: Put { size: 2 * CHUNK, ..of(stream(2, 6)) }, payload: None, sent: CHUNK };
    let items = [
        (2, begun),
        (2, put(stream(2, 6))),
        (2, get(77, stream(2, 5))),
        // As the peer numbers its queues.
        (2, Item::Frame(Frame::Ping { request: 9 })),
        (2, put(stream(2, 7))),
        (2, get(78, stream(2, 7))),
        (3, put(stream(3, 6))),
    ];
    for (queue, item) in items {
        out.append_item(QueueId(queue), item);
    }
    let expected = Dropped { puts: vec![stream(2, 6)], gets: vec![77] };
    assert_eq!(out.drop_purged(QueueId(2), 7), expected);
    assert!(out.drop_purged(QueueId(2), 7).is_empty(), "twice");
    assert!(out.drop_purged(QueueId(4), 7).is_empty(), "of another queue");
    let left: Vec<usize> = out.streams.iter().map(|(_, items)| items.len()).collect();
    assert_eq!(left, [4, 1]);
    // A queue of which all was dropped leaves no stream behind.
    assert!(!out.drop_purged(QueueId(3), 7).is_empty());
    assert_eq!(out.streams.len(), 1);
}

/// A carrier of bytes that takes none.
#[derive(Debug)]
struct Full {
    drained: bool,
    /// What has not arrived where so many messages were handled.
    kept: fn(u64) -> Option<Vec<Kept>>,
}

impl ByteCarrier for Full {
    fn number(&self) -> u32 {
        7
    }

    unsafe fn send(&self, _: [Piece; 2], _: bool) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(libc::EAGAIN))
    }

    unsafe fn write_ahead(&self, _: &ChannelMessage<'_>) -> Ahead {
        Ahead::GoesAlong
    }

    fn is_drained(&self) -> bool {
        self.drained
    }

    fn attempt(&self) -> u32 {
        3
    }

    fn take_back(&self, messages: u64) -> Option<Vec<Kept>> {
        (self.kept)(messages)
    }
}

/// One that has sent two messages, and data ahead of the second one.
fn full() -> Arc<Full> {
    let kept = |messages: u64| {
        let segment = SegmentId(255);
        let remote = RemoteAddress { segment, generation: 1, offset: 64 };
        let (stream, notification) = (Stream { queue: CHANNELS, generation: 0 }, NotificationId(0));
        let put = Put { stream, remote, size: 6, last: true, notification, value: 0 };
        // SAFETY: constant.
        let buffer = Arc::new(unsafe { UserBuffer::new(b"ahead!".as_ptr()) });
        let data = Kept::Data(put, Payload::of_user(buffer, 0));
        let bytes = |bytes: &[u8]| Kept::Bytes { bytes: bytes.to_vec(), has_data: false };
        let kept = vec![bytes(b"one"), data, bytes(b"two")];
        let handled = [0, 1, 3].get(messages as usize)?;
        Some(kept.into_iter().skip(*handled).collect())
    };
    Arc::new(Full { drained: false, kept })
}

#[test]
fn another_carrier_gets_what_is_behind_the_frame_that_tells_of_it() {
    let ping = |request| Frame::Ping { request };
    let mut out = SendQueue { carrying: Carrying::Next(full()), ..SendQueue::default() };
    out.append_item(QueueId(0), Item::Frame(ping(1)));
    out.begin_switch();
    assert!(!out.is_switching() && !out.has_switched(), "the socket has a frame to send");
    out.wire.clear();
    out.begin_switch();
    let mut bytes = Vec::new();
    Frame::Switch { attempt: 3, number: 7, continues: 0 }.append_to(&mut bytes);
    assert_eq!(out.wire, bytes);
    out.append_item(QueueId(0), Item::Frame(ping(2)));
    assert_eq!(out.wire, bytes, "what follows is for the other carrier");
    assert!(!out.has_switched() && out.carrying.other().is_none(), "it has not been told");
    out.wire.clear();
    assert!(out.has_switched() && out.carrying.other().is_some() && !out.has_switched());
    out.refill();
    bytes.clear();
    ping(2).append_to(&mut bytes);
    assert_eq!(out.wire, bytes);
}

#[test]
fn a_put_that_has_begun_on_the_socket_ends_there() {
    let stream = Stream { queue: QueueId(0), generation: 0 };
    let (notification, segment) = (crate::ids::NotificationId(0), SegmentId(0));
    let remote = RemoteAddress { segment, generation: 1, offset: 0 };
    let put = Put { stream, remote, size: 3 * CHUNK, last: true, notification, value: 0 };
    let mut out = SendQueue { carrying: Carrying::Next(full()), ..SendQueue::default() };
    out.append_item(QueueId(0), Item::put(put, None));
    for _ in 0..2 {
        out.wire.clear();
        out.begin_switch();
        assert!(!out.is_switching(), "a part has been sent, but not all");
        out.refill();
    }
    out.wire.clear();
    out.begin_switch();
    assert!(out.is_switching() && out.streams.is_empty());
}

const PAYLOAD: usize = 768 * 1024;

/// A stream with one payload to send, by way of `pipes`, and its other end.
fn stream(name: &str, pipes: &Arc<Pipes>, byte: u8) -> (SendQueue, OwnedFd, OwnedFd) {
    let name = format!("gaspi-outgoing-{name}-{}", std::process::id());
    let listener = socket::listen(&name).expect("listener");
    let client = socket::connect(&name).expect("connection");
    let server = socket::accept(listener.as_fd()).expect("accept").expect("a connection waits");
    let shape = Shape { ranks: 1, notifications: 8 };
    let segment = Segment::new(SegmentId(0), 1, PAYLOAD as u64, Init::Zeroed, shape);
    let segment = Arc::new(segment.expect("segment"));
    // SAFETY: the memory of the segment.
    unsafe { segment.pointer().write_bytes(byte, PAYLOAD) };
    let payload = Payload::new(segment, 0);
    let mut out = SendQueue { by_page: ByPage::through(pipes), ..SendQueue::default() };
    out.append_item(QueueId(0), Item::Data { request: 1, size: PAYLOAD as u64, payload });
    (out, client, server)
}

/// Sends until the socket is full, or all has been sent: then true.
fn pump(out: &mut SendQueue, fd: &OwnedFd) -> bool {
    while !out.wire.is_empty() {
        match send(fd.as_fd(), out) {
            Ok(()) => {}
            Err(error) if socket::is_full(&error) => return false,
            Err(error) => panic!("sending: {error}"),
        }
    }
    true
}

/// Receives what is there.
fn take(fd: &OwnedFd, got: &mut Vec<u8>) {
    let mut buffer = vec![0u8; 64 * 1024];
    let piece = Piece { pointer: buffer.as_mut_ptr(), len: buffer.len() };
    // SAFETY: the buffer is writable.
    while let Ok(len @ 1..) = unsafe { socket::receive_bytes(fd.as_fd(), piece) } {
        got.extend_from_slice(&buffer[..len]);
    }
}

fn assert_whole(got: &[u8], byte: u8) {
    let mut head = Vec::new();
    Frame::Data { request: 1, size: PAYLOAD as u64 }.append_to(&mut head);
    assert_eq!(got.len(), head.len() + PAYLOAD);
    assert!(got.starts_with(&head) && got[head.len()..].iter().all(|found| *found == byte));
}

#[test]
fn payloads_arrive_whole_while_the_pipe_is_with_another_stream_and_after_it_broke() {
    let pipes = Arc::default();
    let (mut first, to_first, from_first) = stream("first", &pipes, 1);
    assert!(!pump(&mut first, &to_first));
    assert!(first.by_page.pipe.is_some(), "the socket is full, and the pipe is not empty");
    // By copies.
    let (mut second, to_second, from_second) = stream("second", &pipes, 2);
    let mut got = Vec::new();
    while !pump(&mut second, &to_second) {
        assert!(second.by_page.pipe.is_none());
        take(&from_second, &mut got);
    }
    take(&from_second, &mut got);
    assert_whole(&got, 2);
    let mut got = Vec::new();
    while !pump(&mut first, &to_first) {
        take(&from_first, &mut got);
    }
    take(&from_first, &mut got);
    assert_whole(&got, 1);
    // One that breaks takes what is in the pipe along.
    let (mut third, to_third, _) = stream("third", &pipes, 3);
    assert!(send(to_third.as_fd(), &mut third).is_err());
    let (mut third, to_third, _from_third) = stream("broken", &pipes, 3);
    assert!(!pump(&mut third, &to_third));
    third.give_up();
    let (mut fourth, to_fourth, from_fourth) = stream("fourth", &pipes, 4);
    assert!(!pump(&mut fourth, &to_fourth));
    assert!(fourth.by_page.pipe.is_some(), "there is a pipe again");
    let mut got = Vec::new();
    while !pump(&mut fourth, &to_fourth) {
        take(&from_fourth, &mut got);
    }
    take(&from_fourth, &mut got);
    assert_whole(&got, 4);
}

#[test]
fn a_message_goes_out_whole_although_its_data_changes_once_it_was_posted() {
    let pipes = Arc::default();
    let (mut out, to, from) = stream("message", &pipes, 0);
    let mut got = Vec::new();
    while !pump(&mut out, &to) {
        take(&from, &mut got);
    }
    take(&from, &mut got);
    got.clear();
    let shape = Shape { ranks: 1, notifications: 8 };
    let slot = Segment::new(SegmentId(1), 1, 2 * PAYLOAD as u64, Init::Zeroed, shape);
    let slot = Payload::new(Arc::new(slot.expect("segment")), 64);
    let (head, mut data) = ([7u8; 64], vec![8u8; PAYLOAD]);
    let remote = RemoteAddress { segment: SegmentId(1), generation: 1, offset: 0 };
    let (size, notification) = ((head.len() + PAYLOAD) as u64, crate::ids::NotificationId(0));
    let stream = Stream { queue: QueueId(0), generation: 0 };
    let put = Put { stream, remote, size, last: true, notification, value: 1 };
    let (pieces, buffer, by_device) = (Piece::of(&data), None, None);
    let message = ChannelMessage { put, head: &head, data: pieces, slot, buffer, by_device };
    assert!(!out.is_full(&message));
    // Room is waited for, but not for ever, and not behind others.
    out.room.awaited = true;
    assert!(out.is_full(&message) && out.is_full(&message));
    out.room.note_drained();
    assert!(!out.is_full(&message) && out.is_full(&message));
    out.streams.push_back((QueueId(1), VecDeque::new()));
    assert!(!out.is_full(&message));
    out.streams.clear();
    out.room.awaited = false;
    // SAFETY: all of it lives here.
    let left = unsafe { out.send_message(Some(to.as_fd()), false, message) };
    assert!(left, "it is more than the socket takes");
    data.fill(9);
    while !pump(&mut out, &to) {
        take(&from, &mut got);
    }
    take(&from, &mut got);
    let mut expected = Vec::new();
    Frame::Put(put).append_to(&mut expected);
    expected.extend(head);
    expected.resize(expected.len() + PAYLOAD, 8);
    assert!(got == expected, "{} bytes of {}", got.len(), expected.len());
}

#[test]
fn what_was_called_back_ends_the_stream_instead_of_standing_for_data() {
    let (mut out, to, _from) = stream("called-back", &Arc::default(), 0);
    (out.wire, out.body, out.streams) = (vec![1], None, VecDeque::new());
    let data = vec![7u8; 4 << 20];
    // SAFETY: the data outlives the stream.
    let loan = Arc::new(unsafe { UserBuffer::new(data.as_ptr()) });
    let payload = Payload::of_user(Arc::clone(&loan), 0);
    out.body = Some(OutgoingBody { payload, sent: 0, size: data.len() as u64, piped: true });
    assert!(!pump(&mut out, &to), "it is more than the socket takes");
    // What has been handed over goes out as it is; what has not, not at all.
    out.by_page.pipe = None;
    loan.revoke();
    let outcome = send(to.as_fd(), &mut out);
    assert!(outcome.is_err_and(|error| !socket::is_full(&error)));
}

#[test]
fn payloads_are_copied_where_pages_cannot_be_handed_over() {
    let pipes: Arc<Pipes> = Arc::default();
    let refused = io::Error::from_raw_os_error(libc::ENOSYS);
    pipes.acquire().expect("pipe").refuse(&refused);
    let (mut out, to, from) = stream("refused", &pipes, 5);
    let mut got = Vec::new();
    while !pump(&mut out, &to) {
        assert!(out.by_page.pipe.is_none());
        take(&from, &mut got);
    }
    take(&from, &mut got);
    assert_whole(&got, 5);
}

/// All that a socket gets, sent whole each time.
fn sent_by_socket(out: &mut SendQueue) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        out.begin_switch();
        if !out.is_switching() {
            out.refill();
        }
        if out.wire.is_empty() {
            return bytes;
        }
        bytes.extend_from_slice(&out.wire[out.sent..]);
        if let Some(body) = out.body.take() {
            let rest = body.rest();
            // SAFETY: memory of the test.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(rest.pointer, rest.len) });
        }
        out.wire.clear();
        out.sent = 0;
        out.has_switched();
    }
}

#[test]
fn bytes_that_have_not_arrived_go_by_the_socket_ahead_of_the_rest() {
    let after = || {
        let mut out = SendQueue { carrying: Carrying::Other(full()), ..SendQueue::default() };
        // In the middle of a frame.
        out.wire = b"sent, and three".to_vec();
        out.sent = "sent, and ".len();
        out.control.push_back(Outgoing::new(&Frame::Goodbye));
        out
    };
    let mut resume = Vec::new();
    Frame::Resume { number: 7 }.append_to(&mut resume);
    let goodbye = Frame::Goodbye.encode();
    // Data comes before the news, and completes nothing.
    let segment = SegmentId(255);
    let remote = RemoteAddress { segment, generation: 1, offset: 64 };
    let (stream, notification) = (Stream { queue: CHANNELS, generation: 0 }, NotificationId(0));
    let put = Put { stream, remote, size: 6, last: false, notification, value: 0 };
    let data = [&Frame::Put(put).encode()[..], b"ahead!"].concat();
    let cases: [(u32, u64, &[&[u8]]); 4] = [
        (7, 0, &[&data, &resume, b"onetwothree", &goodbye]),
        (7, 1, &[&data, &resume, b"twothree", &goodbye]),
        (7, 2, &[&resume, b"three", &goodbye]),
        // What the peer says of other bytes.
        (0, 2, &[&data, &resume, b"onetwothree", &goodbye]),
    ];
    for (number, messages, expected) in cases {
        let mut out = after();
        assert_eq!(out.go_back(3, number, messages), Ok(true));
        assert_eq!(sent_by_socket(&mut out), expected.concat(), "{messages} of {number}");
        assert!(matches!(out.carrying, Carrying::Socket) && out.is_idle());
    }
    assert_eq!(after().go_back(3, 7, 9), Err(()), "it has not sent so many");
    assert_eq!(after().go_back(2, 7, 1), Ok(false), "of an earlier attempt");
}

/// Nothing of it goes by the socket but the news of the next carrier.
#[test]
fn bytes_that_no_socket_may_carry_wait_for_the_next_carrier() {
    let withheld = Withheld::new(Some(Arc::default()));
    let carrying = Carrying::Other(full());
    let mut out = SendQueue { carrying, withheld, ..SendQueue::default() };
    out.wire = b"sent, and three".to_vec();
    out.sent = "sent, and ".len();
    let ping = |request| Frame::Ping { request };
    out.push_control(Outgoing::with_data(&ping(1)));
    assert_eq!(out.go_back(3, 7, 0), Ok(true));
    assert!(matches!(out.carrying, Carrying::Waiting(7)));
    out.push_control(Outgoing::with_data(&ping(2)));
    out.push_control(Outgoing::new(&ping(3)));
    assert_eq!(out.go_on_by_next().ok(), Some(false));
    out.fill_wire();
    assert_eq!((&out.wire[..], out.sent), (&b"onetwothree"[..], 0), "it stands still");
    assert!(!out.is_idle() && !out.going_back.has_any_beside());
    out.carry_next(full());
    let switch = Frame::Switch { attempt: 3, number: 7, continues: 7 };
    assert_eq!(out.going_back.beside, switch.encode());
    assert_eq!(out.go_on_by_next().ok(), Some(true));
    assert!(matches!(out.carrying, Carrying::Other(_)) && out.withheld.is_empty());
    out.wire.clear();
    out.refill();
    let data_in_order = [ping(1), ping(3), ping(2)].map(|frame| frame.encode()).concat();
    assert_eq!(out.wire, data_in_order);
}

#[test]
fn what_is_left_of_a_payload_goes_on_behind_its_frame() {
    // SAFETY: constant.
    let buffer = Arc::new(unsafe { UserBuffer::new([7; 100].as_ptr()) });
    let payload = Payload::of_user(buffer, 0);
    let withheld = Withheld::new(Some(Arc::default()));
    let carrying = Carrying::Other(full());
    let mut out = SendQueue { carrying, withheld, ..SendQueue::default() };
    (out.wire, out.sent) = (b"frame".to_vec(), "frame".len());
    out.body = Some(OutgoingBody { payload, sent: 40, size: 100, piped: false });
    // The peer has handled all that was sent.
    assert_eq!(out.go_back(3, 7, 2), Ok(true));
    assert!(matches!(out.carrying, Carrying::Waiting(7)) && !out.is_idle());
    out.carry_next(full());
    assert_eq!(out.go_on_by_next().ok(), Some(true));
    out.fill_wire();
    assert_eq!((&out.wire[..], out.sent), (&b"frame"[..], "frame".len()), "all of it is sent");
    assert_eq!(out.body.as_ref().map(|body| body.sent), Some(40), "what follows is its payload");
}

#[test]
fn bytes_without_data_go_back_to_the_socket_also_where_data_may_not() {
    let kept =
        |messages: u64| Some(vec![Kept::Bytes { bytes: b"kept".to_vec(), has_data: messages > 0 }]);
    let after = |has_data, queued: Outgoing| {
        let withheld = Withheld::new(Some(Arc::default()));
        let carrying = Carrying::Other(Arc::new(Full { drained: true, kept }));
        let mut out = SendQueue { carrying, withheld, ..SendQueue::default() };
        out.wire = b"rest".to_vec();
        out.going_back.has_data = has_data;
        out.control.push_back(queued);
        out
    };
    let ping = Frame::Ping { request: 1 };
    let mut out = after(false, Outgoing::new(&ping));
    assert_eq!(out.go_back(3, 7, 0), Ok(true));
    let resume = Frame::Resume { number: 7 }.encode();
    assert_eq!(sent_by_socket(&mut out), [&resume[..], b"keptrest", &ping.encode()].concat());
    let data = || Outgoing::with_data(&ping);
    // Of what was kept, on the wire, or queued.
    let plain = || Outgoing::new(&ping);
    for (has_data, messages, queued) in
        [(true, 0, plain()), (false, 1, plain()), (false, 0, data())]
    {
        let mut out = after(has_data, queued);
        assert_eq!(out.go_back(3, 7, messages), Ok(true));
        assert!(matches!(out.carrying, Carrying::Waiting(7)));
    }
}

#[test]
fn news_go_beside_bytes_at_the_boundary_of_a_frame() {
    let mut out = SendQueue::default();
    out.append_item(QueueId(0), Item::Frame(Frame::Ping { request: 1 }));
    out.sent = 1;
    out.going_back.beside = b"beside".to_vec();
    out.put_beside();
    assert!(out.going_back.has_any_beside(), "a part of the frame has been sent");
    out.sent = 0;
    out.put_beside();
    assert_eq!(out.wire, [b"beside", &Frame::Ping { request: 1 }.encode()[..]].concat());
}

#[test]
fn a_carrier_whose_pair_has_ended_meanwhile_is_told_of_and_left_at_once() {
    let mut out = SendQueue { carrying: Carrying::Next(full()), ..SendQueue::default() };
    out.begin_switch();
    assert_eq!(out.go_back(3, 0, 0), Ok(true));
    let expected =
        [Frame::Switch { attempt: 3, number: 7, continues: 0 }, Frame::Resume { number: 7 }];
    assert_eq!(out.wire, expected.map(|frame| frame.encode()).concat());
    assert!(matches!(out.carrying, Carrying::Socket));
    assert!(out.going_back.has_ended(3) && !out.going_back.has_ended(4));
}
