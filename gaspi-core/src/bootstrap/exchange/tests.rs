//! Meetings of threads through real sockets, and of ranks with a launcher's host.

use super::golden_tests::sample_card;
use crate::bootstrap::job::{Job, ServerLocation};
use crate::bootstrap::system::{self, random};
use crate::bootstrap::{Card, Client, Request, Server, Table};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::socket::{self, Piece};
use crate::timeout::{Deadline, Timeout};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

/// Far beyond what anything here takes.
pub(crate) const GUARD: Timeout = Timeout::Millis(60_000);

pub(crate) fn card(job: &Job) -> Card {
    Card {
        rank: job.rank,
        pid: 0,
        start_time: crate::os::process::start_time(std::process::id() as i32).expect("own"),
        instance: u64::from(job.rank.0) + 100,
        host: Arc::clone(&job.hosts[job.rank.index()]),
        ..sample_card()
    }
}

pub(crate) fn client(job: &Job) -> Client {
    Client::new(job, &Config::default(), card(job)).expect("client")
}

fn meet(job: &Job, config: &Config, timeout: Timeout) -> Result<Table> {
    Client::new(job, config, card(job))?.poll(timeout.deadline())
}

pub(crate) fn unique(what: &str) -> String {
    format!("{what}-{:x}", u64::from_le_bytes(random().expect("random")))
}

/// A rank of a job whose launcher has a server of this name.
pub(super) fn launched(name: &str, id: &str, rank: u16, size: u32) -> Job {
    let server = ServerLocation::Launcher(name.to_owned());
    Job { server, ..Job::in_process(id, Rank(rank), size) }
}

/// Serves `host` in a thread until the receiver of its requests is told to stop.
struct Launcher {
    name: String,
    commands: std::sync::mpsc::Sender<(Rank, String)>,
    requests: std::sync::mpsc::Receiver<Request>,
    thread: thread::JoinHandle<()>,
}

impl Launcher {
    fn start(id: &str, size: u32) -> Launcher {
        let mut host = Server::bind(id, size).expect("host");
        let (commands, orders) = std::sync::mpsc::channel::<(Rank, String)>();
        let (tell, requests) = std::sync::mpsc::channel();
        let name = host.name().to_owned();
        let thread = thread::spawn(move || {
            loop {
                let tick = Some(Duration::from_millis(5));
                system::wait(&[(host.as_fd(), false)], Deadline::Never, tick);
                for request in host.serve() {
                    let _ = tell.send(request);
                }
                match orders.try_recv() {
                    Ok((rank, how)) => host.gone(rank, &how),
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => return,
                    Err(std::sync::mpsc::TryRecvError::Empty) => {}
                }
            }
        });
        Launcher { name, commands, requests, thread }
    }

    fn job(&self, id: &str, rank: u16, size: u32) -> Job {
        launched(&self.name, id, rank, size)
    }

    fn stop(self) {
        drop(self.commands);
        self.thread.join().expect("launcher");
    }
}

/// Which file it is.
pub(crate) fn inode(fd: &OwnedFd) -> u64 {
    rustix::fs::fstat(fd).expect("status").st_ino
}

fn check_tables(tables: &[Table], size: u32) {
    for table in tables {
        assert_eq!(table.cards.len(), size as usize);
        for (rank, card) in table.cards.iter().enumerate() {
            assert_eq!(card.rank().index(), rank);
            assert_eq!(card.instance(), rank as u64 + 100);
            assert_eq!(card.pid(), std::process::id() as i32);
        }
        assert_eq!(table.token, tables[0].token);
        assert_eq!(inode(&table.area), inode(&tables[0].area));
        let bytes = crate::wire::shared_layout::SharedLayout::new(size, 32).bytes();
        crate::os::memory::check_sealed(table.area.as_fd(), bytes).expect("sealed");
    }
}

#[test]
fn threads_meet_again_and_again() {
    for size in [1, 2, 5, 16] {
        let id = unique("threads");
        thread::scope(|scope| {
            let run = |rank| {
                let job = Job::in_process(&id, Rank(rank), size);
                let once = || meet(&job, &Config::default(), GUARD).expect("table");
                (0..5).map(|_| once()).collect::<Vec<Table>>()
            };
            let ranks: Vec<_> =
                (0..size as u16).map(|rank| scope.spawn(move || run(rank))).collect();
            let mut all: Vec<_> =
                ranks.into_iter().map(|rank| rank.join().expect("rank").into_iter()).collect();
            for _ in 0..5 {
                let round: Vec<Table> = all.iter_mut().map(|t| t.next().expect("table")).collect();
                check_tables(&round, size);
            }
        });
    }
}

#[test]
fn ranks_meet_at_a_launcher_and_again() {
    let id = unique("launched");
    let launcher = Launcher::start(&id, 4);
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..4)
            .map(|rank| {
                let job = launcher.job(&id, rank, 4);
                scope.spawn(move || {
                    for _ in 0..20 {
                        let table = meet(&job, &Config::default(), GUARD).expect("table");
                        assert_eq!(table.cards.len(), 4);
                    }
                    meet(&job, &Config::default(), GUARD).expect("table")
                })
            })
            .collect();
        let tables: Vec<Table> = ranks.into_iter().map(|rank| rank.join().expect("rank")).collect();
        check_tables(&tables, 4);
        tables[2].membership.request_kill(Rank(1)).expect("request");
        let guard = Duration::from_secs(60);
        let request = launcher.requests.recv_timeout(guard).expect("request");
        let Request::Kill { rank, process } = request else { panic!("{request:?}") };
        assert_eq!(rank, Rank(1));
        // A pidfd of this process, whose ranks are threads.
        assert!(!system::readable(process.expect("it has joined").as_fd()));
    });
    launcher.stop();
}

#[test]
fn without_a_launcher_nobody_kills() {
    let table = meet(&Job::single(), &Config::default(), Timeout::Test).expect("table");
    assert_eq!(table.cards.at(Rank(0)).pid(), std::process::id() as i32);
    assert!(table.membership.request_kill(Rank(0)).is_err());
}

#[test]
fn a_timeout_names_the_missing_and_continues() {
    let id = unique("late");
    let jobs: Vec<Job> = (0..3).map(|rank| Job::in_process(&id, Rank(rank), 3)).collect();
    let mut ranks: Vec<Client> = jobs.iter().map(client).collect();
    let error = ranks[0].poll(Deadline::Now).expect_err("alone");
    assert!(error.is_timeout(), "{error}");
    let started = Instant::now();
    let error = ranks[0].poll(Timeout::Millis(30).deadline()).expect_err("alone");
    assert!(started.elapsed() >= Duration::from_millis(30));
    assert!(error.to_string().contains("ranks 1, 2 of job"), "{error}");
    // The others knock; the host looks at them in its next call.
    assert!(ranks[2].poll(Deadline::Now).expect_err("not served").is_timeout());
    let error = ranks[0].poll(Timeout::Millis(30).deadline()).expect_err("one is missing");
    assert!(error.to_string().contains("rank 1 of job"), "{error}");
    assert!(ranks[1].poll(Deadline::Now).expect_err("not served").is_timeout());
    let tables: Vec<Table> =
        ranks.iter_mut().map(|rank| rank.poll(GUARD.deadline()).expect("table")).collect();
    check_tables(&tables, 3);
    assert!(matches!(ranks[0].poll(Deadline::Now), Err(Error::Meeting { .. })));
}

#[test]
fn waiting_takes_no_cpu() {
    let cpu = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes the struct that it is given.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let job = Job::in_process(&unique("idle"), Rank(0), 2);
    let before = cpu();
    assert!(meet(&job, &Config::default(), Timeout::Millis(400)).expect_err("alone").is_timeout());
    let used = cpu() - before;
    assert!(used < Duration::from_millis(40), "{used:?}");
}

#[test]
fn a_difference_is_an_error_on_all() {
    let id = unique("differ");
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..4)
            .map(|rank| {
                let job = Job::in_process(&id, Rank(rank), 4);
                let segment_max = if rank == 2 { 7 } else { 255 };
                let config = Config { segment_max, ..Config::default() };
                scope.spawn(move || meet(&job, &config, GUARD).expect_err("mismatch"))
            })
            .collect();
        for rank in ranks {
            let error = rank.join().expect("rank");
            let text = error.to_string();
            assert!(matches!(error, Error::ConfigMismatch { .. }), "{text}");
            assert!(text.contains("segment_max is 255 on rank 0 and 7 on rank 2"), "{text}");
        }
    });
}

#[test]
fn a_second_claim_fails_alone() {
    let id = unique("twice");
    let job = |rank| Job::in_process(&id, Rank(rank), 2);
    let config = Config::default();
    let mut host = client(&job(0));
    assert!(host.poll(Deadline::Now).expect_err("alone").is_timeout());
    thread::scope(|scope| {
        let second = scope.spawn(|| meet(&job(0), &config, GUARD).expect_err("claimed"));
        while !second.is_finished() {
            assert!(host.poll(Timeout::Millis(5).deadline()).expect_err("alone").is_timeout());
        }
        let error = second.join().expect("thread");
        assert!(matches!(error, Error::Environment { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("already claimed by process"), "{text}");
        let other = scope.spawn(|| meet(&job(1), &config, GUARD).expect("table"));
        let own = host.poll(GUARD.deadline()).expect("table");
        check_tables(&[own, other.join().expect("thread")], 2);
    });
}

#[test]
fn of_two_claims_at_once_one_fails_alone() {
    for _ in 0..200 {
        let id = unique("at-once");
        let job = |rank| Job::in_process(&id, Rank(rank), 2);
        let config = Config::default();
        let begin = Barrier::new(2);
        thread::scope(|scope| {
            let (done, failed) = std::sync::mpsc::channel();
            let claims = [0; 2].map(|rank| {
                let (done, begin, job, config) = (done.clone(), &begin, job(rank), &config);
                scope.spawn(move || {
                    begin.wait();
                    let met = meet(&job, config, GUARD).map(|_| ());
                    // Nobody listens where this is the one that meets.
                    let _ = done.send(());
                    met.map_err(|error| error.to_string())
                })
            });
            failed.recv().expect("one of both fails");
            meet(&job(1), &config, GUARD).expect("the other one's job");
            let claims = claims.map(|claim| claim.join().expect("thread"));
            let refused: Vec<&String> = claims.iter().filter_map(|it| it.as_ref().err()).collect();
            assert!(
                matches!(refused[..], [text] if text.contains("already claimed by process")),
                "{claims:?}"
            );
        });
    }
}

#[test]
fn sizes_that_differ_are_told() {
    let id = unique("sizes");
    thread::scope(|scope| {
        let go = |rank, size| {
            let job = Job::in_process(&id, Rank(rank), size);
            scope.spawn(move || meet(&job, &Config::default(), GUARD).expect_err("mismatch"))
        };
        for rank in [go(0, 2), go(1, 3)] {
            let text = rank.join().expect("rank").to_string();
            assert!(text.contains("GASPI_NRANKS"), "{text}");
        }
    });
}

#[test]
fn a_rank_that_ends_during_init_ends_it_for_all() {
    let id = unique("ends");
    let launcher = Launcher::start(&id, 3);
    let ready = Barrier::new(2);
    thread::scope(|scope| {
        let job = launcher.job(&id, 0, 3);
        let ready = &ready;
        let waiting = scope.spawn(move || {
            let mut rank = client(&job);
            while !matches!(rank.poll(Timeout::Millis(1).deadline()),
                Err(Error::Timeout { pending }) if pending.contains("rank 2 "))
            {}
            ready.wait();
            rank.poll(Deadline::Never).expect_err("ended")
        });
        let job = launcher.job(&id, 1, 3);
        let mut leaving = client(&job);
        assert!(leaving.poll(Timeout::Millis(1).deadline()).expect_err("alone").is_timeout());
        ready.wait();
        drop(leaving);
        let text = waiting.join().expect("rank").to_string();
        assert!(text.contains("rank 1") && text.contains("ended during init"), "{text}");
        // A rank that comes late hears the same.
        let job = launcher.job(&id, 2, 3);
        assert_eq!(meet(&job, &Config::default(), GUARD).expect_err("late").to_string(), text);
    });
    launcher.stop();
}

#[test]
fn a_process_that_never_joins_ends_it_for_all() {
    let id = unique("gone");
    let launcher = Launcher::start(&id, 2);
    thread::scope(|scope| {
        let job = launcher.job(&id, 0, 2);
        let waiting =
            scope.spawn(move || meet(&job, &Config::default(), Timeout::Block).expect_err("gone"));
        launcher.commands.send((Rank(1), "exit status 3".to_owned())).expect("launcher");
        let text = waiting.join().expect("rank").to_string();
        assert!(
            text.contains("rank 1 has ended before it joined the job (exit status 3)"),
            "{text}"
        );
    });
    launcher.stop();
}

#[test]
fn a_host_that_ends_is_named() {
    let id = unique("host");
    let (zero, one) = (Job::in_process(&id, Rank(0), 3), Job::in_process(&id, Rank(1), 3));
    let mut host = client(&zero);
    assert!(host.poll(Deadline::Now).expect_err("alone").is_timeout());
    let mut rank = client(&one);
    assert!(rank.poll(Deadline::Now).expect_err("not served").is_timeout());
    drop(host);
    let error = rank.poll(GUARD.deadline()).expect_err("host ended");
    let text = error.to_string();
    assert!(matches!(error, Error::Meeting { .. }), "{text}");
    assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
    // The name is free at once.
    let mut next = client(&zero);
    assert!(next.poll(Deadline::Now).expect_err("alone").is_timeout());
}

#[test]
fn a_launcher_that_is_not_there_is_named() {
    let host = Server::bind("j", 2).expect("host");
    let job = launched(host.name(), "j", 0, 2);
    drop(host);
    let error = meet(&job, &Config::default(), Timeout::Block).expect_err("no launcher");
    assert!(error.to_string().contains("does not answer"), "{error}");
}

#[test]
fn nonsense_on_the_socket_hurts_only_its_sender() {
    let id = unique("nonsense");
    let job = |rank| Job::in_process(&id, Rank(rank), 2);
    let config = Config::default();
    let mut host = client(&job(0));
    assert!(host.poll(Deadline::Now).expect_err("alone").is_timeout());
    let ServerLocation::FirstRank(name) = job(0).server else { panic!("a job by hand") };
    let mut strangers = Vec::new();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 64], &[255; 64], b"\x03\0\0\0\x01\x09\x09"] {
        let fd = socket::connect(&name).expect("connect");
        let pieces = [Piece::of(bytes), Piece::of(&[])];
        // SAFETY: the bytes live across the call.
        unsafe { socket::send(fd.as_fd(), pieces, &[]) }.expect("send");
        strangers.push(fd);
    }
    assert!(host.poll(Timeout::Millis(10).deadline()).expect_err("alone").is_timeout());
    thread::scope(|scope| {
        let other = scope.spawn(|| meet(&job(1), &config, GUARD).expect("table"));
        let own = host.poll(GUARD.deadline()).expect("table");
        check_tables(&[own, other.join().expect("thread")], 2);
    });
    for stranger in strangers {
        assert!(system::readable(stranger.as_fd()), "it was answered and closed");
    }
}
