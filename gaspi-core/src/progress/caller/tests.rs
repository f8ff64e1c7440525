//! Who looks after the sockets: two ranks of this process that reach each other by TCP.

use super::*;
use crate::bootstrap::Job;
use crate::config::Config;
use crate::error::Error;
use crate::ids::{GroupId, NotificationId, QueueId, Rank, SegmentId};
use crate::policy::focus::LOOKS;
use crate::runtime::{PendingInit, Runtime};
use crate::segment::Init;
use crate::sync::MutexGuard;
use crate::timeout::Timeout;
use crate::transport::shm::area::liveness;
use crate::transport::tcp::connection::Connection;
use crate::transport::tcp::receive::Receiver;
use crate::wait::Call;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

/// Long enough for anything that is right.
const LIMIT: Timeout = Timeout::Millis(60_000);
const PATIENCE: Duration = Duration::from_secs(60);
const SEGMENT: SegmentId = SegmentId(0);
const QUEUE: QueueId = QueueId(0);
const NEWS: NotificationId = NotificationId(0);

/// Ranks on nodes of their own, with a segment and a connection between each two of them.
fn ranks<const N: usize>(id: &str) -> [Runtime; N] {
    let join = |rank: usize| {
        let job = Job::in_process(id, Rank(rank as u16), N as u32).on_node(rank as u64);
        let runtime =
            PendingInit::new(job, Config::default()).expect("job").wait(LIMIT).expect("join");
        runtime.segment_create(SEGMENT, 64, GroupId::ALL, LIMIT, Init::Zeroed).expect("segment");
        runtime
    };
    std::thread::scope(|scope| {
        let joining: [_; N] = std::array::from_fn(|rank| scope.spawn(move || join(rank)));
        joining.map(|rank| rank.join().expect("it joins"))
    })
}

fn endpoints(runtime: &Runtime) -> &EndpointTable {
    &runtime.inner().endpoints.stream
}

fn poll_owner_of(runtime: &Runtime) -> PollOwner {
    endpoints(runtime).polling.owner()
}

/// Waits until something is so.
fn await_that(what: &str, mut so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !so() {
        assert!(begin.elapsed() < PATIENCE, "not after {PATIENCE:?}: {what}");
        std::thread::yield_now();
    }
}

fn tell(from: &Runtime, to: &Runtime) {
    tell_value(from, to, 1);
}

/// Sends a notification; it may take more of them than a queue holds.
fn tell_value(from: &Runtime, to: &Runtime, value: u32) {
    let notify = || from.notify(to.rank(), SEGMENT, NEWS, value, QUEUE, LIMIT);
    match notify() {
        Err(Error::QueueFull { .. }) => {
            from.wait(QUEUE, LIMIT).expect("wait");
            notify().expect("notify");
        }
        sent => sent.expect("notify"),
    }
}

fn hear(runtime: &Runtime) {
    let found = runtime.notify_waitsome(SEGMENT, NEWS.0, 1, LIMIT).expect("wait");
    assert_eq!(found, Some(NEWS));
    assert_eq!(runtime.notify_reset(SEGMENT, NEWS).expect("reset"), 1);
}

/// One message there and one back, again and again, until something is so after a message to `b`,
/// which then answers no more; `b` has waited for each.
fn talk_until(a: &Runtime, b: &Runtime, what: &str, mut so: impl FnMut() -> bool + Send) {
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                hear(b);
                // The last message has another value: nothing answers it.
                let ended = so();
                tell_value(b, a, if ended { 2 } else { 1 });
                if ended {
                    break;
                }
            }
        });
        loop {
            assert!(begin.elapsed() < PATIENCE, "not after {PATIENCE:?}: {what}");
            tell(a, b);
            a.notify_waitsome(SEGMENT, NEWS.0, 1, LIMIT).expect("wait");
            if a.notify_reset(SEGMENT, NEWS).expect("reset") == 2 {
                break;
            }
        }
    });
    // What is still under way would count as traffic.
    a.wait(QUEUE, LIMIT).expect("wait");
    b.wait(QUEUE, LIMIT).expect("wait");
}

/// The same until the socket of `b` is out of its set.
fn talk_until_apart(a: &Runtime, b: &Runtime) {
    await_that("a socket is apart", || {
        talk_until(a, b, "a socket is apart", || endpoints(b).polling.is_direct());
        endpoints(b).polling.is_direct()
    });
}

fn is_served(by: &Runtime, asking: &Runtime) {
    asking.atomic_fetch_add(SEGMENT, 8, by.rank(), 1, LIMIT).expect("it is served");
}

#[test]
fn the_progress_thread_ticks_while_callers_come_back_and_listens_when_they_stay_away() {
    let [a, b] = ranks("ticking");
    talk_until(&a, &b, "the thread ticks", || poll_owner_of(&b) == PollOwner::Timer);
    await_that("the thread listens", || poll_owner_of(&b) == PollOwner::Thread);
    is_served(&b, &a);
    // Again, with what the first time has left behind.
    talk_until(&a, &b, "the thread ticks", || poll_owner_of(&b) == PollOwner::Timer);
    await_that("the thread listens", || poll_owner_of(&b) == PollOwner::Thread);
    is_served(&b, &a);
}

#[test]
fn a_rank_that_computes_after_lively_traffic_serves_others() {
    let [a, b] = ranks("apart");
    for _ in 0..5 {
        talk_until_apart(&a, &b);
        is_served(&b, &a);
        await_that("the thread listens", || poll_owner_of(&b) == PollOwner::Thread);
        assert!(
            !endpoints(&b).polling.is_direct(),
            "the thread does not listen to a socket that is apart"
        );
        is_served(&b, &a);
    }
}

#[test]
fn who_sleeps_after_lively_traffic_is_woken_and_relieves_the_progress_thread() {
    let [a, b] = ranks("asleep");
    for _ in 0..5 {
        talk_until_apart(&a, &b);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| hear(&b));
            // Who finds the sockets taken for a moment sleeps elsewhere: it is woken to try again.
            let sleeps = || {
                let sleeps = endpoints(&b).polling.has_sleeper();
                if !sleeps {
                    b.inner().ranks.area.wake(b.rank());
                }
                sleeps
            };
            await_that("a caller sleeps", sleeps);
            assert!(!endpoints(&b).polling.is_direct(), "nobody sleeps on a socket that is apart");
            await_that("the thread is relieved", || {
                sleeps() && poll_owner_of(&b) == PollOwner::Caller
            });
            tell(&a, &b);
            sleeper.join().expect("it is woken");
        });
        // Who leaves without having come back since arms the thread, without waking it.
        is_served(&b, &a);
        await_that("the thread listens or ticks", || poll_owner_of(&b) != PollOwner::Caller);
    }
}

#[test]
fn the_thread_does_not_tick_for_acknowledgements_that_a_sleeper_sends() {
    let [a, b] = ranks("delayed");
    std::thread::scope(|scope| {
        // As a wait before has left it.
        endpoints(&b).polling.set_acks_delayed(true);
        let sleeper = scope.spawn(|| hear(&b));
        await_that("a caller sleeps", || endpoints(&b).polling.has_sleeper());
        await_that("nothing is left to the thread", || !endpoints(&b).polling.needs_timer());
        tell(&a, &b);
        sleeper.join().expect("it is woken");
    });
}

#[test]
fn who_finds_the_sockets_taken_and_sleeps_elsewhere_has_them_looked_after() {
    let [a, b] = ranks("elsewhere");
    for _ in 0..5 {
        talk_until_apart(&a, &b);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| hear(&b));
            let wake = || b.inner().ranks.area.wake(b.rank());
            let sleeps_on_them = || endpoints(&b).polling.has_sleeper();
            let mut held = None;
            await_that("the waiter has left the sockets to who holds them", || {
                let relieved = sleeps_on_them() && poll_owner_of(&b) == PollOwner::Caller;
                if held.is_none() && !relieved {
                    wake();
                }
                if held.is_none() && relieved {
                    wake();
                    held = try_receiver(endpoints(&b));
                }
                let awaited = &b.inner().ranks.area.own_wakeup().awaited;
                held.is_some() && !sleeps_on_them() && awaited.load(Ordering::Relaxed) != 0
            });
            // As who has only posted: it neither waits nor sleeps.
            drop(held);
            tell(&a, &b);
            let end = Instant::now() + Duration::from_secs(20);
            while !waiter.is_finished() {
                if Instant::now() > end {
                    wake();
                    panic!("nobody looks after the sockets");
                }
                std::thread::yield_now();
            }
        });
    }
}

#[test]
fn the_end_of_a_socket_that_is_apart_is_noticed_while_nobody_calls() {
    let [a, b] = ranks("ends");
    talk_until_apart(&a, &b);
    a.term(LIMIT).expect("term");
    drop(a);
    await_that("it has left", || b.inner().ranks.liveness(Rank(0)) == liveness::LEFT);
    await_that("nothing is apart", || !endpoints(&b).polling.is_direct());
    let refused = b.ping(Rank(0), LIMIT).expect_err("it has left");
    assert!(matches!(refused, Error::RankLeft { .. }), "{refused}");
}

/// How many segments with data the kernel has sent on a connection.
fn segments_sent(connection: &Connection) -> u32 {
    /// Where tcpi_data_segs_out lies in the kernel's struct tcp_info.
    const AT: usize = 156;
    let mut info = [0u8; AT + 4];
    let mut len = info.len() as libc::socklen_t;
    let fd = connection.fd().expect("socket").as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes.
    let outcome = unsafe {
        let to = info.as_mut_ptr().cast();
        libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, to, &raw mut len)
    };
    assert_eq!((outcome, len as usize), (0, info.len()), "a kernel from 4.6 on tells");
    u32::from_ne_bytes(info[AT..].try_into().expect("four bytes"))
}

fn connection(of: &Runtime, to: &Runtime) -> Arc<Connection> {
    endpoints(of).open(of.inner(), to.rank()).expect("connection")
}

#[test]
fn who_answers_at_once_acknowledges_along_with_the_answer_and_else_at_a_tick() {
    const MESSAGES: u32 = 50;
    let [a, b] = ranks("along");
    let used = connection(&b, &a);
    // Answers that are late, since somebody else has the core, are not awaited.
    await_that("acknowledgements go along", || {
        let (before, mut left) = (segments_sent(&used), MESSAGES);
        talk_until(&a, &b, "some messages", || {
            left -= 1;
            left == 0
        });
        segments_sent(&used) - before < MESSAGES + MESSAGES / 2
    });
    // Nothing follows this one.
    std::thread::scope(|scope| {
        scope.spawn(|| hear(&b));
        tell(&a, &b);
    });
    a.wait(QUEUE, LIMIT).expect("it is acknowledged");
}

/// Takes the sockets of a rank away from its progress thread.
fn hold(runtime: &Runtime) -> MutexGuard<'_, Receiver> {
    let mut held = None;
    await_that("nobody looks after the sockets", || {
        held = try_receiver(endpoints(runtime));
        held.is_some()
    });
    held.expect("held")
}

#[test]
fn an_acknowledgement_that_waits_for_an_answer_goes_out_however_the_thread_finds_the_sockets() {
    let [a, b] = ranks("riding");
    let receiver = loop {
        let mut left = 10;
        talk_until(&a, &b, "answers", || {
            left -= 1;
            left == 0
        });
        let mut receiver = hold(&b);
        tell(&a, &b);
        await_that("it comes", || receiver.turn(b.inner().tcp(), 0, || ()));
        endpoints(&b).polling.set_owner(&endpoints(&b).sets, PollOwner::Timer);
        endpoints(&b).sets.wakeup.wake();
        receiver.send_or_delay_acks(b.inner().tcp());
        // Else it was not expected to go along, or the thread had stopped ticking.
        if receiver.has_unsent_acks() {
            break receiver;
        }
        drop(receiver);
        a.wait(QUEUE, LIMIT).expect("it is acknowledged");
    };
    // The thread comes, and finds that somebody else looks after the sockets.
    for _ in 0..3 {
        endpoints(&b).polling.note_brief();
        await_that("the thread ticks", || !endpoints(&b).polling.is_brief());
    }
    assert!(receiver.has_unsent_acks());
    drop(receiver);
    a.wait(QUEUE, LIMIT).expect("it is acknowledged");
}

#[test]
fn a_look_at_the_set_is_one_at_the_socket_that_is_apart_too() {
    let [a, b] = ranks("both");
    let mut receiver = loop {
        talk_until_apart(&a, &b);
        let receiver = hold(&b);
        // Nobody puts it back from here on.
        if endpoints(&b).polling.is_direct() {
            break receiver;
        }
    };
    tell(&a, &b);
    await_that("it is seen", || receiver.turn(b.inner().tcp(), 0, || ()));
    assert!(endpoints(&b).polling.is_direct());
}

/// How many looks it takes until something is found that has come.
fn looks(receiver: &mut Receiver, runtime: &Runtime) -> u32 {
    let mut events = Vec::new();
    endpoints(runtime).sets.data.wait(&mut events, 60_000);
    assert!(!events.is_empty(), "something comes");
    let mut looks = 1;
    while !receiver.look(runtime.inner().tcp()) {
        looks += 1;
        assert!(looks < 10 * LOOKS, "it is seen");
    }
    looks
}

#[test]
fn all_connections_are_looked_at_each_time_unless_everything_comes_on_one() {
    let [a, b, c] = ranks("looks");
    let mut receiver = hold(&a);
    // Whatever has come on one before.
    for from in [&c, &b] {
        tell(from, &a);
        looks(&mut receiver, &a);
    }
    for _ in 0..4 {
        for from in [&c, &b] {
            tell(from, &a);
            assert_eq!(looks(&mut receiver, &a), 1);
        }
    }
    for _ in 0..2 * LOOKS {
        tell(&b, &a);
        looks(&mut receiver, &a);
    }
    // Most looks are at that one alone, but not all.
    tell(&c, &a);
    let late = looks(&mut receiver, &a);
    assert!(late <= LOOKS, "{late}");
    tell(&b, &a);
    assert_eq!(looks(&mut receiver, &a), 1);
    drop(receiver);
}

/// Leaves while somebody else has the sockets, and says how long that takes once they are free.
fn leave_behind(leaver: &Runtime) -> Duration {
    let held = hold(leaver);
    std::thread::scope(|scope| {
        let leaving = scope.spawn(|| leaver.term(LIMIT));
        await_that("it sleeps", || {
            let notes = leaver.inner().ranks.area.notes(leaver.rank());
            notes.iter().any(|note| note.call.load(Ordering::Relaxed) == Call::Term as u32)
                && leaver.inner().ranks.area.own_wakeup().awaited.load(Ordering::Relaxed) != 0
        });
        drop(held);
        let begin = Instant::now();
        // The progress thread comes and goes.
        endpoints(leaver).sets.wakeup.wake();
        leaving.join().expect("no panic").expect("term");
        begin.elapsed()
    })
}

#[test]
fn a_rank_that_leaves_sleeps_no_longer_than_until_the_sockets_are_free() {
    // A busy machine may take as long now and then, and it may have found them free by itself.
    let mut times: [Duration; 9] = std::array::from_fn(|round| {
        let [_a, b] = ranks(&format!("leaves-{round}"));
        leave_behind(&b)
    });
    times.sort();
    assert!(times[4] < Duration::from_millis(500), "{times:?}");
}
