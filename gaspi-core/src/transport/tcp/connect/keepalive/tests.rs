//! Ranks that leave while others are about to watch them, or have not listened.

use super::*;
use crate::bootstrap::Job;
use crate::config::{Config, Topology};
use crate::runtime::{PendingInit, Runtime};
use crate::timeout::Timeout;
use crate::wire::handshake::{Client, Peer, Purpose, Secret};
use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::net::{TcpListener, TcpStream};
use std::os::fd::FromRawFd;
use std::time::Instant;

/// Long enough for anything that is right.
const LIMIT: Timeout = Timeout::Millis(60_000);
const PATIENCE: Duration = Duration::from_secs(60);
/// After this an address does not lead there.
const DEAD_AFTER: Duration = Duration::from_secs(10);

/// Ranks on nodes of their own, not connected with each other but by keepalive connections.
fn ranks<const N: usize>(id: &str) -> [Runtime; N] {
    let join = |rank: usize| {
        let job = Job::in_process(id, Rank(rank as u16), N as u32).on_node(rank as u64);
        let config = Config { topology: Topology::None, ..Config::default() };
        PendingInit::new(job, config).expect("job").wait(LIMIT).expect("join")
    };
    std::thread::scope(|scope| {
        let joining: [_; N] = std::array::from_fn(|rank| scope.spawn(move || join(rank)));
        joining.map(|rank| rank.join().expect("it joins"))
    })
}

/// Says what one side of a handshake has to say now.
fn say(stream: &mut TcpStream, client: &mut Client) {
    let said = client.output().len();
    stream.write_all(client.output()).expect("it is heard");
    client.sent(said);
}

/// Begins a keepalive connection with `b` as rank 0, up to the challenge, which only a rank sends
/// that has taken notice.
fn begin_keepalive(b: &Runtime) -> (TcpStream, Client) {
    let inner = b.inner();
    let mut addresses = inner.ranks.cards.at(Rank(1)).endpoints();
    let connected =
        addresses.find_map(|address| TcpStream::connect_timeout(&address, DEAD_AFTER).ok());
    let mut stream = connected.expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    let secret = Secret {
        job: inner.endpoints.stream.identity.token,
        key: inner.endpoints.stream.identity.key,
    };
    let to = Peer { rank: 1, purpose: Purpose::Keepalive };
    let mut client = Client::new(&secret, 0, to, [3; 32]);
    say(&mut stream, &mut client);
    while client.output().is_empty() {
        let mut bytes = [0; 256];
        let wants = client.wants();
        let count = stream.read(&mut bytes[..wants]).expect("it answers");
        assert!(count > 0 && client.receive(&bytes[..count]) > 0);
    }
    (stream, client)
}

#[test]
fn who_is_about_to_watch_a_rank_that_leaves_is_told() {
    let [a, b] = ranks("about-to-watch");
    let inner = b.inner();
    let (mut stream, mut client) = begin_keepalive(&b);
    std::thread::scope(|scope| {
        let leaving = scope.spawn(|| b.term(LIMIT).expect("term"));
        let begin = Instant::now();
        while !inner.endpoints.stream.polling.is_stopped() {
            assert!(begin.elapsed() < PATIENCE, "it does not leave");
            std::thread::yield_now();
        }
        // Far less than it waits for this, and more than it needs to end.
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(50) && !leaving.is_finished() {
            std::thread::yield_now();
        }
        say(&mut stream, &mut client);
        let (mut said, mut farewell) = (Vec::new(), Vec::new());
        stream.read_to_end(&mut said).expect("it closes properly");
        KeepaliveMessage::Farewell.encode(&mut farewell);
        assert_eq!(said, farewell);
    });
    drop(a);
}

/// Reads what is said: as many bytes as this is, which it has to be.
fn expect_said(stream: &mut TcpStream, expected: &[KeepaliveMessage]) {
    let mut bytes = Vec::new();
    expected.iter().for_each(|said| said.encode(&mut bytes));
    let mut said = vec![0; bytes.len()];
    stream.read_exact(&mut said).expect("it is said");
    assert_eq!(said, bytes);
}

/// The other one comes before it in the tree, and may have found nobody else: it is told all, and
/// has to say that it has heard that.
#[test]
fn a_rank_that_leaves_after_it_has_heard_another_one_counts_on_that_one() {
    let [a, b] = ranks("heard-before");
    let (mut stream, mut client) = begin_keepalive(&b);
    say(&mut stream, &mut client);
    let mut farewell = Vec::new();
    KeepaliveMessage::Farewell.encode(&mut farewell);
    stream.write_all(&farewell).expect("it is heard");
    expect_said(&mut stream, &[KeepaliveMessage::Heard]);
    std::thread::scope(|scope| {
        scope.spawn(|| b.term(LIMIT).expect("term"));
        expect_said(&mut stream, &[KeepaliveMessage::Left(0), KeepaliveMessage::Farewell]);
        let mut heard = Vec::new();
        KeepaliveMessage::Heard.encode(&mut heard);
        stream.write_all(&heard).expect("it is heard");
        stream.read_to_end(&mut Vec::new()).expect("it closes properly");
    });
    drop(a);
}

/// A copy of the other end of a connection within this process, as a forked child would hold it.
fn copy_of_other_end(stream: &TcpStream) -> TcpStream {
    let own = stream.local_addr().expect("an address");
    let open = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    let numbers = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut copies = numbers.filter_map(|number: i32| {
        // SAFETY: it is not closed here; if somebody else closes it meanwhile, the address differs.
        let seen = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(number) });
        seen.peer_addr().ok().filter(|peer| *peer == own)?;
        seen.try_clone().ok()
    });
    copies.next().expect("the other end is in this process")
}

#[test]
fn a_keepalive_connection_ends_with_its_rank_though_a_forked_child_holds_it() {
    let [a, b] = ranks("forked-child");
    let (mut stream, mut client) = begin_keepalive(&b);
    say(&mut stream, &mut client);
    let copy = copy_of_other_end(&stream);
    std::thread::scope(|scope| {
        scope.spawn(|| b.term(LIMIT).expect("term"));
        stream.read_to_end(&mut Vec::new()).expect("it is closed");
    });
    drop((copy, a));
}

#[test]
fn a_rank_that_has_said_farewell_is_not_dead_because_nobody_listens_any_more() {
    let [a, b] = ranks("unheard");
    let inner = a.inner();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = listener.local_addr().expect("an address");
    let keepalive = TcpStream::connect(address).expect("it is listened to");
    let (mut of_watched, _) = listener.accept().expect("a connection");
    keepalive.set_nonblocking(true).expect("a socket");
    let mut farewell = Vec::new();
    KeepaliveMessage::Farewell.encode(&mut farewell);
    of_watched.write_all(&farewell).expect("it is heard");
    // Nobody else hears it, or looks whether it lives.
    inner.endpoints.stream.polling.stop();
    inner.endpoints.stream.sets.wakeup.wake();
    b.term(LIMIT).expect("term");
    drop(b);
    let mut connecting = Connector::new(inner.tcp());
    connecting.keepalives.insert(KEEPALIVES, Keepalive::new(keepalive.into(), Rank(1)));
    connecting.begin(inner.tcp(), Rank(1), ConnectPurpose::Probe);
    let begin = Instant::now();
    while connecting.is_busy() {
        assert!(begin.elapsed() < PATIENCE, "it goes on trying");
        for number in 0..=connecting.next {
            connecting.serve_attempt(inner.tcp(), number);
        }
        connecting.turn(inner.tcp());
    }
    assert_eq!(inner.ranks.liveness(Rank(1)), liveness::LEFT);
}

#[test]
fn a_rank_that_leaves_waits_for_nobody_where_all_have_left() {
    let [first, others @ ..]: [_; 40] = ranks("all-leave");
    let inner = first.inner();
    // Nobody hears what the others say.
    inner.endpoints.stream.polling.stop();
    inner.endpoints.stream.sets.wakeup.wake();
    std::thread::scope(|scope| {
        for other in others {
            scope.spawn(move || other.term(LIMIT).expect("term"));
        }
    });
    let mut connecting = Connector::new(inner.tcp());
    connecting.say_farewell(inner.tcp());
    let begin = Instant::now();
    while connecting.has_to_stay() {
        assert!(begin.elapsed() < PATIENCE, "it waits for ranks that have left");
        for number in 0..=connecting.next {
            connecting.serve_attempt(inner.tcp(), number);
        }
        connecting.turn(inner.tcp());
    }
}

/// Whether `b` listens.
fn connects_to(b: &Runtime) -> bool {
    let mut addresses = b.inner().ranks.cards.at(Rank(1)).endpoints();
    addresses.any(|address| TcpStream::connect_timeout(&address, DEAD_AFTER).is_ok())
}

#[test]
fn a_rank_that_ends_refuses_connections_before_it_closes_those_that_it_has() {
    let [a, b] = ranks("refuses-first");
    assert!(connects_to(&b));
    let (mut unproved, _) = begin_keepalive(&b);
    b.inner().endpoints.stream.polling.stop();
    b.inner().endpoints.stream.sets.wakeup.wake();
    unproved.read_to_end(&mut Vec::new()).expect("it is closed");
    assert!(!connects_to(&b), "it listens though nobody accepts");
    drop((a, b));
}

/// Who accepts connections and ends them may have left, or has too many of them.
#[test]
fn who_leaves_tries_one_that_ends_a_connection_at_once_the_first_time_only() {
    let [a, b] = ranks("ends-connections");
    let (inner, sets) = (a.inner(), &b.inner().endpoints.stream.sets);
    inner.endpoints.stream.polling.stop();
    inner.endpoints.stream.sets.wakeup.wake();
    // Here they are accepted instead.
    let listeners = sets.remote_listeners();
    listeners.iter().for_each(|listener| sets.poll.remove(listener.as_fd()));
    let accept = || {
        let mut all = listeners.iter();
        all.find_map(|listener| tcp::accept(listener.as_fd()).expect("it listens"))
    };
    let mut connecting = Connector::new(inner.tcp());
    connecting.say_farewell(inner.tcp());
    let begin = Instant::now();
    for is_first in [true, false] {
        while accept().map(drop).is_none() {
            assert!(begin.elapsed() < PATIENCE, "nobody connects");
            connecting.turn(inner.tcp());
        }
        let ended = Instant::now();
        while connecting.again.is_empty() {
            assert!(begin.elapsed() < PATIENCE, "the end is not seen");
            (0..=connecting.next).for_each(|number| connecting.serve_attempt(inner.tcp(), number));
            // By another address of it.
            drop(accept());
        }
        let seen = Instant::now();
        let at = connecting.again.iter().next().expect("it is tried again").at;
        assert!(if is_first { at <= seen } else { at >= ended + AGAIN }, "{is_first}");
    }
    drop((a, b));
}

#[test]
fn a_silent_host_is_asked_for_as_long_as_it_is_waited_for() {
    for (dead_after, wanted) in [(3, (1, 1)), (5, (1, 3)), (129, (1, 127)), (3600, (29, 124))] {
        let found = probes(Duration::from_secs(dead_after));
        assert_eq!(found, wanted, "{dead_after} s");
        let asked = u64::from(found.0) * u64::from(found.1);
        assert!(asked + 2 <= dead_after && asked + 2 + u64::from(found.0) > dead_after);
    }
}
