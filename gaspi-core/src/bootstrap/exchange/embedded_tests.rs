//! Jobs started by hand over several machines: each machine is a name of its own here, and they
//! meet over TCP on loopback.

use super::*;
use crate::bootstrap::addresses::Audience;
use crate::bootstrap::auth::Key;
use crate::bootstrap::cards::tests::all;
use crate::bootstrap::cards::{Cards, Image};
use crate::bootstrap::exchange::client::Unable;
use crate::bootstrap::exchange::hub_access::{PATIENCE, PORTS, TRIES, derived_ports};
use crate::bootstrap::exchange::message::{CPU_WORDS_MAX, Join, Message};
use crate::bootstrap::exchange::relay_listener::UNAUTHENTICATED_MAX;
use crate::bootstrap::exchange::relay_protocol::{self, RelayDecoder, ToHub, ToRelay};
use crate::bootstrap::exchange::tests::{GUARD, card, client, unique};
use crate::bootstrap::job::HubLocation;
use crate::bootstrap::system;
use crate::bootstrap::{Card, Client, Table};
use crate::config::Config;
use crate::ids::Rank;
use crate::os::{socket, tcp};
use crate::timeout::{Deadline, Timeout};
use crate::wire::handshake::{self, HUB, Peer, Purpose, Secret, State, job_name};
use crate::wire::record_layer::RecordLayer;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;

/// A rank of the job `id` on the machine `host`; machine 0 has the hub.
fn job(id: &str, (rank, size): (u16, u32), host: usize, port: Option<u16>) -> Job {
    let hub = HubLocation {
        host: "127.0.0.1".to_owned(),
        port,
        here: host == 0,
        audience: Audience::ThisHost,
        key: Some(Key([7; 32])),
        munge: false,
        addresses: Vec::new(),
    };
    let server = ServerLocation::OverHosts { name: format!("gaspi-test-{id}-{host}"), hub };
    let hosts = (0..size).map(|rank| format!("host{}", rank % 3).into()).collect();
    Job { server, hosts, spans_hosts: true, ..Job::in_process(id, Rank(rank), size) }
}

fn with_key(mut job: Job, byte: u8) -> Job {
    if let ServerLocation::OverHosts { hub, .. } = &mut job.server {
        hub.key = Some(Key([byte; 32]));
    }
    job
}

fn refusal(job: &Job) -> String {
    client(job).poll(GUARD.deadline()).expect_err("refused").to_string()
}

#[test]
fn machines_meet_over_tcp_again_and_again() {
    let id = unique("hand");
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..6u16)
            .map(|rank| {
                let job = job(&id, (rank, 6), usize::from(rank) % 3, None);
                scope.spawn(move || {
                    let once = |_| client(&job).poll(GUARD.deadline()).expect("table");
                    (0..5).map(once).collect::<Vec<Table>>()
                })
            })
            .collect();
        let tables: Vec<Vec<Table>> =
            ranks.into_iter().map(|rank| rank.join().expect("rank")).collect();
        for round in 0..5 {
            let first = &tables[0][round];
            for (rank, table) in tables.iter().map(|all| &all[round]).enumerate() {
                assert_eq!((table.key, all(&table.cards)), (first.key, all(&first.cards)));
                for (other, card) in table.cards.iter().enumerate() {
                    let same = rank % 3 == other % 3;
                    assert_eq!(table.cards.at(Rank(rank as u16)).machine() == card.machine(), same);
                }
            }
            assert!(round == 0 || first.key != tables[0][round - 1].key);
        }
    });
}

#[test]
fn a_difference_is_told_on_all_machines() {
    let id = unique("differ");
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..3u16)
            .map(|rank| {
                let job = job(&id, (rank, 3), usize::from(rank), None);
                let segment_max = if rank == 2 { 7 } else { 255 };
                let config = Config { segment_max, ..Config::default() };
                scope.spawn(move || {
                    let mut rank = Client::new(&job, &config, card(&job)).expect("client");
                    rank.poll(GUARD.deadline()).expect_err("mismatch").to_string()
                })
            })
            .collect();
        for rank in ranks {
            let text = rank.join().expect("rank");
            assert!(text.contains("segment_max is 255 on rank 0 and 7 on rank 2"), "{text}");
        }
    });
}

fn tell_unable(job: &Job) {
    let (rank, reason) = (job.rank, format!("{} has no memory", job.rank));
    Unable { job: job.id.clone(), rank, reason }.tell(job, GUARD.deadline());
}

#[test]
fn a_rank_that_cannot_join_tells_all_machines_whoever_comes_first() {
    for unable in 0..3u16 {
        let id = unique("unable");
        let of = |rank: u16| job(&id, (rank, 3), usize::from(rank), None);
        thread::scope(|scope| {
            let teller = scope.spawn(move || tell_unable(&of(unable)));
            // Alone on its machine it serves there.
            let ServerLocation::OverHosts { name, .. } = of(unable).server else { return };
            while socket::connect(&name).is_err() && !teller.is_finished() {
                thread::yield_now();
            }
            for rank in (0..3).filter(|rank| *rank != unable) {
                scope.spawn(move || {
                    let text = refusal(&of(rank));
                    assert!(text.contains(&format!("rank {unable} has no memory")), "{text}");
                });
            }
        });
    }
}

#[test]
fn a_rank_that_cannot_join_serves_its_machine_until_all_there_have_heard() {
    let id = unique("unable-relay");
    let of = |rank: u16| job(&id, (rank, 4), usize::from(rank / 2), None);
    thread::scope(|scope| {
        let teller = scope.spawn(move || tell_unable(&of(2)));
        let ServerLocation::OverHosts { name, .. } = of(2).server else { return };
        while socket::connect(&name).is_err() && !teller.is_finished() {
            thread::yield_now();
        }
        // It comes there before there is a hub.
        let mut near = client(&of(3));
        assert!(near.poll(Deadline::Now).expect_err("nobody is there").is_timeout());
        for rank in 0..2 {
            scope.spawn(move || assert_refused(&refusal(&of(rank))));
        }
        assert_refused(&near.poll(GUARD.deadline()).expect_err("refused").to_string());
    });
}

#[test]
fn a_rank_that_hears_of_a_failure_passes_it_on_to_who_has_just_come_to_it() {
    let id = unique("unable-near");
    let of = |rank: u16| job(&id, (rank, 4), usize::from(rank / 2), None);
    thread::scope(|scope| {
        let hub = scope.spawn(move || refusal(&of(0)));
        // Serves its machine, and is known to the hub when that one fails.
        let mut serving = client(&of(2));
        let known = |pending: String| pending.contains("rank 1 on host1");
        while !known(serving.poll(Deadline::Now).expect_err("incomplete").to_string()) {
            thread::yield_now();
        }
        scope.spawn(move || tell_unable(&of(1)));
        // It has asked to join, maybe before the error was there, maybe after.
        let mut near = client(&of(3));
        assert!(near.poll(Deadline::Now).expect_err("not told yet").is_timeout());
        let text = serving.poll(GUARD.deadline()).expect_err("refused").to_string();
        assert!(text.contains("rank 1 has no memory"), "{text}");
        let text = near.poll(GUARD.deadline()).expect_err("refused").to_string();
        assert!(text.contains("rank 1 has no memory"), "{text}");
        assert!(hub.join().expect("no panic").contains("rank 1 has no memory"));
    });
}

fn assert_refused(text: &str) {
    assert!(text.contains("rank 2 has no memory"), "{text}");
}

#[test]
fn a_rank_that_cannot_join_tells_its_machine_whoever_comes_later() {
    let id = unique("unable-first");
    let of = |rank: u16| Job::in_process(&id, Rank(rank), 3);
    thread::scope(|scope| {
        scope.spawn(move || tell_unable(&of(1)));
        let ServerLocation::FirstRank(name) = of(1).server else { return };
        while socket::connect(&name).is_err() {
            thread::yield_now();
        }
        for rank in [0, 2] {
            let text = refusal(&of(rank));
            assert!(text.contains("rank 1 has no memory"), "{text}");
        }
    });
    // All have heard, so that the next exchange is another one.
    let all: Vec<Table> = thread::scope(|scope| {
        let join = |rank| scope.spawn(move || client(&of(rank)).poll(GUARD.deadline()));
        let ranks = [0, 1, 2].map(join);
        ranks.into_iter().map(|rank| rank.join().expect("rank").expect("table")).collect()
    });
    assert_eq!(all.len(), 3);
}

#[test]
fn a_rank_that_is_claimed_on_two_machines_is_refused_once() {
    let id = unique("twice");
    let mut first = client(&job(&id, (0, 2), 0, None));
    thread::scope(|scope| {
        let wrong = scope.spawn(|| refusal(&job(&id, (0, 2), 1, None)));
        while !wrong.is_finished() {
            assert!(first.poll(Timeout::Millis(5).deadline()).expect_err("alone").is_timeout());
        }
        let text = wrong.join().expect("rank");
        assert!(
            text.contains("already claimed by process") && text.contains(" on host0"),
            "{text}"
        );
        let other = scope.spawn(|| client(&job(&id, (1, 2), 2, None)).poll(GUARD.deadline()));
        first.poll(GUARD.deadline()).expect("table");
        other.join().expect("rank").expect("table");
    });
}

#[test]
fn another_key_is_told_to_both_sides() {
    let id = unique("key");
    let mut hub = client(&job(&id, (0, 2), 0, None));
    thread::scope(|scope| {
        let wrong = scope.spawn(|| refusal(&with_key(job(&id, (1, 2), 1, None), 8)));
        while !wrong.is_finished() {
            assert!(hub.poll(Timeout::Millis(5).deadline()).expect_err("alone").is_timeout());
        }
        let text = wrong.join().expect("rank");
        assert!(text.contains("does not know the key of this job"), "{text}");
        assert!(text.contains("it has to be the same on all hosts"), "{text}");
        let text = hub.poll(Deadline::Now).expect_err("alone").to_string();
        assert!(text.contains("rank 1 on host1 (not seen yet)"), "{text}");
        assert!(text.contains("127.0.0.1 was refused: who says to be rank 1"), "{text}");
        let other = scope.spawn(|| client(&job(&id, (1, 2), 1, None)).poll(GUARD.deadline()));
        hub.poll(GUARD.deadline()).expect("table");
        other.join().expect("rank").expect("table");
    });
}

#[test]
fn a_hub_that_is_not_there_is_named_and_may_come_late() {
    let id = unique("late");
    let mut early = client(&job(&id, (1, 2), 1, None));
    let pending = |early: &mut Client| {
        let error = early.poll(Timeout::Millis(30).deadline()).expect_err("alone");
        assert!(error.is_timeout(), "{error}");
        error.to_string()
    };
    let text = loop {
        let text = pending(&mut early);
        if text.contains("refused") {
            break text;
        }
    };
    let ports = derived_ports(&job_name(&id), PORTS);
    assert!(
        text.contains("the host of the meeting on 127.0.0.1 has not answered at port"),
        "{text}"
    );
    assert!(text.contains(&format!("{}", ports[0])), "{text}");
    thread::scope(|scope| {
        let hub = scope.spawn(|| client(&job(&id, (0, 2), 0, None)).poll(GUARD.deadline()));
        early.poll(GUARD.deadline()).expect("table");
        hub.join().expect("rank").expect("table");
    });
}

/// Somebody who listens at a port that the user has named, and answers the first who comes.
fn answered(answer: impl FnOnce(TcpStream) + Send) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listener");
    let port = listener.local_addr().expect("address").port();
    thread::scope(|scope| {
        scope.spawn(move || answer(listener.accept().expect("connection").0));
        refusal(&job(&unique("named"), (1, 2), 1, Some(port)))
    })
}

#[test]
fn listeners_at_a_named_port_are_told_apart() {
    let shake_hands = |secret: Secret| {
        move |mut stream: TcpStream| {
            let mut server = handshake::Server::new(&secret, HUB, 2, [1; 32]);
            let mut byte = [0];
            while server.wants() > 0 && stream.read(&mut byte).is_ok_and(|count| count > 0) {
                server.receive(&byte);
                stream.write_all(server.output()).expect("write");
                server.sent(server.output().len());
            }
        }
    };
    let other_job = Secret { job: [1; 16], key: [7; 32] };
    let text = answered(shake_hands(other_job));
    assert!(text.contains("a process of another job listens there"), "{text}");
    assert!(text.contains("check GASPI_JOB_ID and GASPI_MEETING"), "{text}");
    let text = answered(|mut stream| {
        let mut hello = [0; 64];
        stream.read_exact(&mut hello).expect("hello");
        // A refusal of version 10.
        stream.write_all(&[&hello[..4], &[10, 0, 2, 0]].concat()).expect("write");
    });
    assert!(text.contains("speaks version 10"), "{text}");
}

/// The hub's machine, served by a thread; its ranks come as those of a launcher. Returns what the
/// test has returned, once the hub is done.
fn with_hub<T>(
    id: &str,
    size: u32,
    test: impl FnOnce(SocketAddr, &(dyn Fn(u16) -> Job + Sync)) -> T,
) -> T {
    let name = format!("gaspi-test-{id}-hub");
    let listener = socket::listen(&name).expect("listener");
    let mut embedded =
        EmbeddedServer::new(&job(id, (0, size), 0, None), &name, listener).expect("hub");
    let Others::Hub(relays) = &embedded.others else { panic!("no hub") };
    let place = tcp::local_address(relays.listeners[0].as_fd()).expect("address");
    thread::scope(|scope| {
        let server = scope.spawn(move || {
            let guard = GUARD.deadline();
            while !embedded.finished() {
                assert!(!guard.passed(), "the hub is not done");
                embedded.serve();
                let (fds, limit) = embedded.watches();
                let tick = limit.unwrap_or(PATIENCE).min(Duration::from_millis(20));
                system::wait(&fds, Deadline::Never, Some(tick));
            }
        });
        let outcome = test(place, &|rank| {
            let server = ServerLocation::Launcher(name.clone());
            Job { server, ..job(id, (rank, size), 0, None) }
        });
        server.join().expect("hub");
        outcome
    })
}

#[test]
fn strangers_do_not_disturb_the_meeting() {
    let id = unique("strangers");
    with_hub(&id, 2, |place, local| {
        let mut strangers = Vec::new();
        let whole = [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 200], b"GASP\x01", b"GASP\xc8\0"];
        for words in whole {
            let mut stream = TcpStream::connect(place).expect("connection");
            stream.write_all(words).expect("write");
            strangers.push(stream);
        }
        // Others connect, and go at once or say nothing at all: all places are taken for a while.
        for number in 0..2 * UNAUTHENTICATED_MAX {
            let stream = TcpStream::connect(place).expect("connection");
            if number % 2 == 0 {
                strangers.push(stream);
            }
        }
        thread::scope(|scope| {
            let other = scope.spawn(|| client(&job(&id, (1, 2), 1, None)).poll(GUARD.deadline()));
            client(&local(0)).poll(GUARD.deadline()).expect("table");
            other.join().expect("rank").expect("table");
        });
        // Nonsense was closed without an answer; another version was told.
        let mut answer = Vec::new();
        let _ = strangers[0].read_to_end(&mut answer);
        assert_eq!(answer, b"");
        strangers[3].read_to_end(&mut answer).expect("refusal");
        assert_eq!(&answer[..4], b"GASP");
    });
}

/// A relay, as the other end of a connection with a hub.
struct Relay {
    stream: TcpStream,
    records: RecordLayer,
}

impl Relay {
    fn say(&mut self, frame: &ToHub) {
        let mut bytes = Vec::new();
        self.records.seal(&frame.encode(), &mut bytes);
        self.stream.write_all(&bytes).expect("hub");
    }
}

/// A relay that has met the hub at `place`.
fn relay(job: &Job, place: SocketAddr) -> Relay {
    let ServerLocation::OverHosts { hub, .. } = &job.server else { panic!("one host") };
    let access = HubAccess::new(job, hub, None).expect("access");
    let to = Peer { rank: HUB, purpose: Purpose::Meeting };
    let begun = access.client(job.rank.0.into(), to).poll();
    let (_, mut handshake) = begun.expect("known").expect("handshake");
    let mut stream = TcpStream::connect(place).expect("connection");
    while handshake.wants() > 0 || !handshake.output().is_empty() {
        stream.write_all(handshake.output()).expect("write");
        handshake.sent(handshake.output().len());
        let mut answer = vec![0; handshake.wants()];
        stream.read_exact(&mut answer).expect("answer");
        handshake.receive(&answer);
    }
    assert!(matches!(handshake.state(), State::Done(_)), "{:?}", handshake.state());
    Relay { stream, records: handshake.records().expect("records") }
}

/// What a relay is told until it has the table: the cards of all ranks.
fn table_of(relay: &mut Relay) -> Cards {
    let (mut frames, mut image) = (RelayDecoder::default(), Vec::new());
    let (mut bytes, mut opened) = (vec![0; 1 << 16], Vec::new());
    loop {
        match frames.next().expect("frame") {
            Some(ToRelay::Cards(part)) => image.extend(part),
            Some(ToRelay::Table { last: true, .. }) => break,
            Some(_) => {}
            None => match relay.stream.read(&mut bytes).expect("more") {
                0 => panic!("closed after {} bytes of cards", image.len()),
                count => {
                    opened.clear();
                    relay.records.open(&bytes[..count], &mut opened).expect("records");
                    frames.feed(&opened);
                }
            },
        }
    }
    Cards::new(Image::Own(image.into())).expect("cards")
}

/// A relay that is stopped reads nothing: the hub does not wait for it, and it finds its table when
/// it goes on.
#[test]
fn a_relay_that_does_not_read_holds_up_nobody_and_gets_its_table() {
    /// All have masks of cores that no other has, so that the table is larger than what the
    /// kernels of both sides take: 8 MiB.
    const SIZE: u32 = 1025;
    let id = unique("stopped");
    let (table, mut stopped) = with_hub(&id, SIZE, |place, local| {
        let behind = |rank| job(&id, (rank, SIZE), 1, None);
        let mut stopped = relay(&behind(1), place);
        stopped.say(&ToHub::Hello { version: relay_protocol::VERSION });
        for rank in 1..SIZE as u16 {
            let mask = (0..CPU_WORDS_MAX as u64).map(|word| word << 16 | u64::from(rank));
            let card = Card { cpus: mask.collect(), ..card(&behind(rank)) };
            let agreed = Config::default().agreed().map(|(name, value)| (name.to_owned(), value));
            let join = Join { job: id.clone(), size: SIZE, agreed: agreed.into(), card };
            let (connection, message) = (rank.into(), Message::Join(join));
            stopped.say(&ToHub::Relayed { connection, message });
        }
        (client(&local(0)).poll(GUARD.deadline()).expect("table"), stopped)
    });
    // The hub is done by now.
    let guard = GUARD.deadline().remaining().expect("guard");
    stopped.stream.set_read_timeout(Some(guard)).expect("guard");
    assert_eq!(all(&table_of(&mut stopped)), all(&table.cards));
}

#[test]
fn a_machine_whose_ranks_end_ends_the_start() {
    let id = unique("ends");
    with_hub(&id, 3, |_, local| {
        thread::scope(|scope| {
            let waiting = scope.spawn(|| refusal(&local(0)));
            let mut leaving = client(&job(&id, (1, 3), 1, None));
            // It has reached the hub once the missing one is named.
            while !leaving
                .poll(Timeout::Millis(5).deadline())
                .expect_err("alone")
                .to_string()
                .contains("rank 2 on host2 (not seen yet) to join")
            {}
            drop(leaving);
            let text = waiting.join().expect("rank");
            assert!(text.contains("rank 1") && text.contains("ended during init"), "{text}");
        });
        // The hub still stands, and sends the last one away.
        let text = refusal(&job(&id, (2, 3), 2, None));
        assert!(text.contains("rank 1") && text.contains("ended during init"), "{text}");
        thread::scope(|scope| {
            let ranks: Vec<_> = (1..3)
                .map(|rank| {
                    let job = job(&id, (rank, 3), usize::from(rank), None);
                    scope.spawn(move || client(&job).poll(GUARD.deadline()).expect("table"))
                })
                .collect();
            client(&local(0)).poll(GUARD.deadline()).expect("table");
            ranks.into_iter().for_each(|rank| drop(rank.join().expect("rank")));
        });
    });
}

#[test]
fn ports_are_derived_alike_and_stay_in_range() {
    for (low, high) in [PORTS, (50000, 50003), (7, 7)] {
        let ports = derived_ports(&job_name("j"), (low, high));
        assert_eq!(ports, derived_ports(&job_name("j"), (low, high)));
        assert!(ports.iter().all(|port| (low..=high).contains(port)), "{ports:?}");
        assert!(!ports.is_empty() && ports.len() <= TRIES);
    }
    assert_ne!(derived_ports(&job_name("j"), PORTS), derived_ports(&job_name("k"), PORTS));
}
