//! Requests that wait for a connection.

use super::*;
use crate::bootstrap::Job;
use crate::config::Config;
use crate::ids::{GroupId, QueueId, SegmentId};
use crate::one_sided::Transfer;
use crate::os::socket::{self, Piece};
use crate::runtime::{PendingInit, Runtime};
use crate::segment::Init;
use crate::timeout::Timeout;
use std::time::{Duration, Instant};

const LIMIT: Timeout = Timeout::Millis(60_000);
const SEGMENT: SegmentId = SegmentId(0);
const QUEUE: QueueId = QueueId(0);
const SIZE: u64 = 1 << 20;

fn ranks(id: &str) -> [Runtime; 2] {
    let join = |rank: u16| {
        let job = Job::in_process(id, Rank(rank), 2).on_node(rank.into());
        let runtime = PendingInit::new(job, Config::default()).unwrap().wait(LIMIT).unwrap();
        runtime.segment_create(SEGMENT, SIZE, GroupId::ALL, LIMIT, Init::Zeroed).unwrap();
        runtime
    };
    std::thread::scope(|scope| {
        let joining = [0, 1].map(|rank| scope.spawn(move || join(rank)));
        joining.map(|rank| rank.join().unwrap())
    })
}

fn table(of: &Runtime) -> &EndpointTable {
    &of.inner().endpoints.stream
}

/// Ends the connections of two ranks.
fn disconnect(one: &Runtime, other: &Runtime) {
    let begun = Instant::now();
    for (from, to) in [(one, other), (other, one)] {
        from.disconnect(to.rank(), LIMIT).unwrap();
    }
    let has_any = |of: &Runtime, peer| !table(of).connections.with(peer).is_empty();
    while has_any(one, Rank(1)) || has_any(other, Rank(0)) {
        assert!(begun.elapsed() < Duration::from_secs(30), "the connection stays");
        std::thread::yield_now();
    }
}

#[test]
fn what_nobody_has_read_of_a_released_connection_is_sent_again() {
    let [one, other] = ranks("unread");
    // From now on they are watched without one for requests.
    disconnect(&one, &other);
    one.barrier(GroupId::ALL, Timeout::Test).unwrap_err();
    other.barrier(GroupId::ALL, LIMIT).unwrap();
    one.barrier(GroupId::ALL, LIMIT).unwrap();
    let receiver = table(&other).receiver.lock();
    one.barrier(GroupId::ALL, Timeout::Test).unwrap_err();
    one.disconnect(Rank(1), LIMIT).unwrap();
    let (mut lost, begun) = ([0; 4096], Instant::now());
    for connection in table(&other).connections.with(Rank(0)) {
        let Some(fd) = connection.fd() else { continue };
        let piece = Piece { pointer: lost.as_mut_ptr(), len: lost.len() };
        // SAFETY: the array is writable.
        while !unsafe { socket::receive_bytes(fd, piece) }.is_ok_and(|count| count > 0) {
            assert!(begun.elapsed() < Duration::from_secs(30), "nothing has come");
            std::thread::yield_now();
        }
        connection.abort();
    }
    drop(receiver);
    other.barrier(GroupId::ALL, LIMIT).expect("the arrival comes again");
    one.barrier(GroupId::ALL, LIMIT).unwrap();
}

#[test]
fn what_waits_for_a_connection_is_dropped_by_a_purge() {
    let [one, other] = ranks("purged");
    disconnect(&one, &other);
    // One that nobody makes.
    let connection = table(&one).connections.between_nodes(Rank(1));
    *table(&one).connections.active(Rank(1)) = Some(Arc::clone(&connection));
    let (local, remote, rank, size) = (SEGMENT, SEGMENT, Rank(1), SIZE);
    let write = Transfer { local, local_offset: 0, rank, remote, remote_offset: 0, size };
    for _ in 0..8 {
        one.write(&write, QUEUE, LIMIT).unwrap();
    }
    assert!(one.wait(QUEUE, Timeout::Test).is_err_and(|error| error.is_timeout()));
    one.queue_purge(QUEUE, LIMIT).unwrap();
    let left = connection.drop_purged(&table(&one).sets.data, QUEUE, 1000);
    assert!(left.is_empty(), "a purge leaves what waits");
    *table(&one).connections.active(Rank(1)) = None;
    one.barrier(GroupId::ALL, Timeout::Test).unwrap_err();
    other.barrier(GroupId::ALL, LIMIT).unwrap();
    one.barrier(GroupId::ALL, LIMIT).unwrap();
}
