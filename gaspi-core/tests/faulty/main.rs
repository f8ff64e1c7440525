//! Networks that delay, hold back and cut: every call ends, nothing is lost or comes twice in
//! silence, nobody is taken for dead who lives, and after delays alone everything is as if nothing
//! had been.
//!
//! Everything random comes from a seed, which a failure prints; `GASPI_TEST_SEED=N` starts
//! elsewhere, and the long tier runs more of them.

mod network;
#[macro_use]
#[path = "../ranks/mod.rs"]
mod ranks;
mod traffic;

use gaspi_core::*;
use network::{Faults, Network, Numbers};
use ranks::{LIMIT, Nodes, others, run_jobs};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use traffic::{Ledger, Traffic, receive};

fn main() -> std::process::ExitCode {
    ranks::run_tests([tests()])
}

const ROUNDS: u64 = 120;

/// The seeds of this run: `few`, or many in the long tier.
fn seeds(few: u64) -> impl Iterator<Item = u64> {
    let first = std::env::var("GASPI_TEST_SEED").map_or(1, |text| text.parse().expect("a number"));
    let full = std::env::var_os("GASPI_TEST_FULL").is_some();
    let count = if full { 20 * few } else { few };
    (first..first + count).inspect(|seed| eprintln!("GASPI_TEST_SEED={seed} begins here"))
}

/// Ranks as threads, which reach those of other nodes through this network.
fn run_through(network: &Network, nodes: Nodes, ranks: u32, body: impl Fn(Runtime) + Sync) {
    let job = |id: &str, rank| nodes.job(id, rank, ranks).via_proxy(network.proxy(rank));
    run_jobs(ranks, &Config::default(), job, body);
}

/// Traffic of all ranks with all through such a network.
fn load(seed: u64, nodes: Nodes, ranks: u32, faults: Faults) {
    let network = Network::new(seed, faults);
    let cuts = faults.cut_bytes > 0 || faults.cut_rounds > 0;
    let ledger = Ledger::new(ranks, cuts);
    let together = Barrier::new(ranks as usize);
    let over = AtomicBool::new(false);
    let (written, counters) = (table(ranks), AtomicU64::new(0));
    run_through(&network, nodes, ranks, |rt| {
        let mut traffic = Traffic::new(&rt, &ledger, seed);
        traffic.prepare();
        std::thread::scope(|scope| {
            scope.spawn(|| receive(&rt, &ledger, || over.load(Ordering::Acquire)));
            for round in 1..=ROUNDS {
                traffic.round();
                if rt.rank() == Rank(0) && faults.cut_rounds > 0 && round % faults.cut_rounds == 0 {
                    network.cut_all();
                }
                if round % 8 == 0 {
                    traffic.agree(GroupId::ALL, round);
                }
                if round % 32 == 0 {
                    traffic.regroup(round);
                }
            }
            for to in others(&rt) {
                written[rt.rank().index()][to.index()]
                    .store(traffic.written(to), Ordering::Relaxed);
            }
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            network.calm();
            // Also what was on its way in connections that have been cut.
            while network.is_late() {
                std::thread::yield_now();
            }
            together.wait();
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            together.wait();
            over.store(true, Ordering::Release);
        });
        together.wait();
        for from in others(&rt) {
            let last = written[from.index()][rt.rank().index()].load(Ordering::Relaxed);
            traffic.check(from, last);
        }
        counters.fetch_add(traffic.counter(), Ordering::Relaxed);
        together.wait();
        for rank in others(&rt).filter(|_| !ledger.may_fail) {
            assert_eq!(rt.state(rank), Ok(State::Healthy), "{rank}, as {} sees it", rt.rank());
        }
        for rank in others(&rt) {
            let reached = (0..20).any(|_| rt.ping(rank, LIMIT).is_ok());
            assert!(reached, "{} does not reach {rank}: {:?}", rt.rank(), rt.ping(rank, LIMIT));
        }
        // Whoever leaves first may not cut off the answers of the others.
        together.wait();
        rt.term(LIMIT).expect("term");
    });
    ledger.check(counters.into_inner());
    let (count, failures) = (network.cuts(), ledger.failures.into_inner());
    eprintln!("{count} connections were cut, {failures} operations failed");
    assert!(!cuts || count > 0, "nothing was cut");
}

fn table(ranks: u32) -> Vec<Vec<AtomicU64>> {
    (0..ranks).map(|_| (0..ranks).map(|_| AtomicU64::new(0)).collect()).collect()
}

const DELAYS: Faults = Faults {
    delay: Duration::from_micros(300),
    hold: Duration::from_millis(20),
    cut_bytes: 0,
    cut_rounds: 0,
};
const CUTS: Faults = Faults { cut_bytes: 1 << 20, ..DELAYS };

fn delays_change_nothing() {
    seeds(2).for_each(|seed| load(seed, Nodes::Each, 3, DELAYS));
}

fn delays_change_nothing_where_links_are_mixed() {
    seeds(2).for_each(|seed| load(seed, Nodes::Pairs, 4, DELAYS));
}

/// However late an answer is, two ranks agree on which of the connections remains that they try.
fn connections_that_are_made_slowly_are_not_torn() {
    let (delay, hold) = (Duration::from_millis(400), Duration::from_millis(400));
    for seed in seeds(3) {
        let network = Network::new(seed, Faults { delay, hold, ..Faults::default() });
        run_through(&network, Nodes::Each, 3, |rt| {
            for round in 0..3 {
                for rank in others(&rt) {
                    let answer = rt.ping(rank, LIMIT);
                    assert_eq!(answer, Ok(()), "{}, {rank}, round {round}", rt.rank());
                }
            }
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            network.calm();
            rt.term(LIMIT).expect("term");
        });
    }
}

/// Pairs and messages of devices go with their connections, and are made again.
fn cuts_lose_nothing_that_devices_carry() {
    seeds(2).for_each(|seed| load(seed, Nodes::Verbs, 3, Faults { cut_rounds: 5, ..DELAYS }));
}

/// Nothing is asked meanwhile: it is no failure of a pair, nor is one made again.
fn pairs_go_with_the_connection_that_they_were_made_by() {
    let network = Network::new(1, Faults::default());
    let (both, segment, queue) = (Barrier::new(2), SegmentId(0), QueueId(0));
    let job = |id: &str, rank| {
        let mut job = Nodes::Verbs.job(id, rank, 2).via_proxy(network.proxy(rank));
        job.device.messages = MessageCarrier::Tcp;
        job
    };
    run_jobs(2, &Config::default(), job, |rt| {
        let peer = Rank(1 - rt.rank().0);
        rt.segment_create(segment, 64, GroupId::ALL, LIMIT, Init::Zeroed).expect("create");
        let begun = Instant::now();
        for up in [1, 0, 1] {
            both.wait();
            if up == 0 && rt.rank() == Rank(0) {
                network.cut_all();
            }
            while rt.pairs().map(|pairs| pairs.up) != Some(up) {
                assert!(begun.elapsed() < Duration::from_secs(30), "{:?}, not {up}", rt.pairs());
                if up == 0 {
                    std::thread::yield_now();
                } else if rt.notify(peer, segment, NotificationId(0), 1, queue, LIMIT).is_err()
                    || rt.wait(queue, LIMIT).is_err()
                {
                    // The connection may not have come back.
                    rt.queue_purge(queue, LIMIT).expect("purge");
                }
            }
            if up == 0 {
                assert_eq!(rt.pairs().map(|pairs| pairs.failed), Some(0));
            }
        }
        both.wait();
        rt.term(LIMIT).expect("term");
    });
}

fn cuts_lose_nothing_silently_and_kill_nobody() {
    seeds(2).for_each(|seed| load(seed, Nodes::Each, 3, CUTS));
}

fn cuts_lose_nothing_silently_where_links_are_mixed() {
    seeds(2).for_each(|seed| load(seed, Nodes::Pairs, 4, CUTS));
}

/// What ranks do together goes on over connections that are cut as if nothing had been.
fn agreements(seed: u64, nodes: Nodes, ranks: u32) {
    let network = Network::new(seed, Faults { cut_bytes: 2000, ..DELAYS });
    let ledger = Ledger::new(ranks, true);
    let together = Barrier::new(ranks as usize);
    run_through(&network, nodes, ranks, |rt| {
        let mut traffic = Traffic::new(&rt, &ledger, seed);
        for round in 1..=300 {
            traffic.agree(GroupId::ALL, round);
            if round % 3 == 0 {
                traffic.send_along(GroupId::ALL, round);
            }
            if round % 8 == 0 {
                traffic.regroup(round);
            }
        }
        network.calm();
        together.wait();
        rt.term(LIMIT).expect("term");
    });
    eprintln!("{} connections were cut", network.cuts());
    assert!(network.cuts() > 0, "nothing was cut");
}

fn agreements_survive_cuts() {
    seeds(3).for_each(|seed| agreements(seed, Nodes::Each, 3));
}

fn agreements_survive_cuts_where_links_are_mixed() {
    seeds(3).for_each(|seed| agreements(seed, Nodes::Pairs, 4));
}

/// Rank 0 posts `post(value)` again and again with rising values until one of them is done, on a
/// network that keeps what is said first, and delivers it in the end.
fn speak_late(rt: &Runtime, network: &Network, post: impl Fn(u32)) -> u32 {
    network.cut_for_speakers();
    let done = (1..1000).find(|value| {
        post(*value);
        rt.wait(Q0, LIMIT).inspect_err(|_| rt.queue_purge(Q0, LIMIT).expect("purge")).is_ok()
    });
    network.deliver();
    done.expect("one of many succeeds")
}

const Q0: QueueId = QueueId(0);

/// What was asked for on a connection that its rank has given up takes no effect any more once the
/// rank has asked for something else.
fn what_is_late_undoes_nothing() {
    let network = Network::new(1, Faults::default());
    let done = AtomicU64::new(0);
    run_through(&network, Nodes::Each, 2, |rt| {
        rt.segment_create(traffic::S0, 64, GroupId::ALL, LIMIT, Init::Zeroed).expect("create");
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        if rt.rank() == Rank(0) {
            let last = speak_late(&rt, &network, |value| {
                rt.segment_write(traffic::S0, 0, &value.to_ne_bytes()).expect("inside");
                let (local_offset, remote_offset, size) = (0, 8, 4);
                let (local, remote, rank) = (traffic::S0, traffic::S0, Rank(1));
                let t = Transfer { local, local_offset, rank, remote, remote_offset, size };
                rt.write_notify(&t, NotificationId(0), value, Q0, LIMIT).expect("posted");
            });
            assert!(last > 1, "nothing was cut");
            done.store(last.into(), Ordering::Relaxed);
        }
        // What has been delivered is read meanwhile.
        (0..100).for_each(|_| rt.barrier(GroupId::ALL, LIMIT).expect("barrier"));
        if rt.rank() == Rank(1) {
            let mut word = [0; 4];
            rt.segment_read(traffic::S0, 8, &mut word).expect("inside");
            let last = done.load(Ordering::Relaxed) as u32;
            assert_eq!(u32::from_ne_bytes(word), last, "an older value has come late");
            let value = rt.notify_reset(traffic::S0, NotificationId(0)).expect("reset");
            assert_eq!(value, last, "an older notification has come late");
        }
        rt.term(LIMIT).expect("term");
    });
    assert!(network.cuts() > 0, "nothing was cut");
}

/// What `first` asks for of rank 1 is lost with its connection; then there is another one.
fn lose(rt: &Runtime, network: &Network, first: impl FnOnce()) {
    let cuts = network.cuts();
    network.cut_for_speakers();
    first();
    let begin = Instant::now();
    while network.cuts() == cuts || rt.ping(Rank(1), LIMIT).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(60), "nothing was cut, or rank 1 is gone");
        std::thread::yield_now();
    }
    network.deliver();
}

/// The next message would count the lost one as well, and stand for it.
fn no_message_follows_one_that_was_lost() {
    let network = Network::new(1, Faults::default());
    run_through(&network, Nodes::Each, 2, |rt| {
        let spec = ChannelSpec { slots: 4, message_bytes: 64, stage_bytes: 64 };
        let channel = rt.channel_open(GroupId::ALL, spec, LIMIT).expect("channel_open");
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        if rt.rank() == Rank(0) {
            let data = [7u8; 64];
            let send = |index| {
                let piece = (data.as_ptr(), data.len());
                // SAFETY: the data is a local; the slots are not in use.
                unsafe { channel.send(1, index, &[7; 8], piece, Lifetime::Call) }
            };
            lose(&rt, &network, || assert_eq!(send(0), Ok(true)));
            let refused = send(1);
            assert!(matches!(refused, Err(Error::Refused { rank: Rank(1), .. })), "{refused:?}");
        }
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        if rt.rank() == Rank(1) {
            assert_eq!(channel.received(0), 0, "a message stands for one that never came");
        }
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        drop(channel);
        rt.term(LIMIT).expect("term");
    });
}

/// Which closed ends are lost with their connection.
#[derive(Clone, Copy, PartialEq, Debug)]
enum LostEnd {
    First,
    Second,
    Both,
}

/// Ranks tell each other that they have closed their end of a channel, whose memory is used again
/// then: also where what they say is lost.
fn the_memory_of_a_channel_comes_back_though_its_end_is_lost() {
    for lost in [LostEnd::First, LostEnd::Second, LostEnd::Both] {
        let network = Network::new(1, Faults::default());
        let together = Barrier::new(2);
        run_through(&network, Nodes::Each, 2, |rt| {
            // The first free place.
            let place = || rt.arena_memory(1).expect("memory").pointer() as usize;
            let (first, me) = (place(), rt.rank());
            let spec = ChannelSpec { slots: 4, message_bytes: 64, stage_bytes: 64 };
            let channel = rt.channel_open(GroupId::ALL, spec, LIMIT).expect("channel_open");
            assert_ne!(place(), first, "the channel lies there");
            greet(&channel);
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            match lost {
                LostEnd::Both => {
                    together.wait();
                    network.shut();
                    together.wait();
                    drop(channel);
                    together.wait();
                    if me == Rank(0) {
                        network.cut_all();
                        network.open();
                    }
                }
                LostEnd::First if me == Rank(0) => {
                    lose(&rt, &network, || drop(channel));
                    together.wait();
                }
                LostEnd::First => {
                    together.wait();
                    drop(channel);
                }
                LostEnd::Second if me == Rank(0) => {
                    let closed = || channel.has_closed(1).then_some(());
                    channel.wait_for(LIMIT.deadline(), closed).expect("it is told");
                    lose(&rt, &network, || drop(channel));
                }
                LostEnd::Second => drop(channel),
            }
            let begin = Instant::now();
            while place() != first {
                assert!(begin.elapsed() < Duration::from_secs(30), "{lost:?}: its memory is lost");
                std::thread::yield_now();
            }
            rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
            rt.term(LIMIT).expect("term");
        });
        assert!(network.cuts() > 0, "nothing was cut");
    }
}

/// Both members send each other a message.
fn greet(channel: &Channel) {
    let (other, data) = (1 - channel.me(), [7u8; 64]);
    let piece = (data.as_ptr(), data.len());
    // SAFETY: the data is a local; the slots are not in use.
    let send = || unsafe { channel.send(other, 0, &[7; 8], piece, Lifetime::Call) };
    let sent =
        channel.wait_for(LIMIT.deadline(), || Some(send()).filter(|sent| *sent != Ok(false)));
    assert_eq!(sent, Some(Ok(true)));
    let received = || (channel.received(other) == 1).then_some(());
    channel.wait_for(LIMIT.deadline(), received).expect("it comes");
    channel.take(other, 1);
}

/// A rank waits for a member of which it has heard nothing, and asks it. Where the question is lost
/// it asks again, after some seconds.
fn a_member_is_asked_again_where_the_question_is_lost() {
    // More than tell each other of themselves.
    const RANKS: u32 = 20;
    let network = Network::new(1, Faults::default());
    let together = Barrier::new(RANKS as usize);
    run_through(&network, Nodes::Each, RANKS, |rt| {
        let spec = ChannelSpec { slots: 4, message_bytes: 64, stage_bytes: 64 };
        let channel = rt.channel_open(GroupId::ALL, spec, LIMIT).expect("channel_open");
        // By a tree the first one is connected with up to 16 others, by rounds with fewer.
        let far = 17;
        if channel.me() == far {
            channel.publish_notice([7; 6]);
        }
        together.wait();
        if channel.me() == 0 {
            assert!(!channel.is_in_touch(far), "they are connected to begin with");
            rt.ping(Rank(far as u16), LIMIT).expect("it lives");
            network.shut();
            channel.ask_for_notice(far);
            network.cut_all();
            network.open();
            let begin = Instant::now();
            let answer = loop {
                channel.ask_for_notice(far);
                let a_while = Timeout::Millis(100).deadline();
                let answer = channel.wait_for(a_while, || channel.read_notice(far));
                if answer.is_some() || begin.elapsed() > Duration::from_secs(50) {
                    break answer;
                }
            };
            assert_eq!(answer, Some([7; 6]), "it was not asked again");
        }
        together.wait();
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        drop(channel);
        rt.term(LIMIT).expect("term");
    });
}

/// A notification says that what was written before it is there.
fn no_notification_follows_a_write_that_was_lost() {
    let network = Network::new(1, Faults::default());
    run_through(&network, Nodes::Each, 2, |rt| {
        let (id, me) = (NotificationId(0), rt.rank());
        rt.segment_create(traffic::S0, 64, GroupId::ALL, LIMIT, Init::Zeroed).expect("create");
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        let (local, remote, rank) = (traffic::S0, traffic::S0, Rank(1));
        let t = Transfer { local, local_offset: 0, rank, remote, remote_offset: 8, size: 8 };
        if me == Rank(0) {
            lose(&rt, &network, || rt.write(&t, Q0, LIMIT).expect("posted"));
            rt.notify(rank, remote, id, 1, Q0, LIMIT).expect("posted");
            let failed = rt.wait(Q0, LIMIT);
            assert!(matches!(failed, Err(Error::RequestFailed { failed: 2, .. })), "{failed:?}");
        }
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        if me == Rank(1) {
            assert_eq!(rt.notify_reset(remote, id), Ok(0), "it says what is not true");
        }
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        if me == Rank(0) {
            rt.queue_purge(Q0, LIMIT).expect("purge");
            rt.write_notify(&t, id, 2, Q0, LIMIT).expect("posted");
            rt.wait(Q0, LIMIT).expect("the queue is of use again");
        } else {
            rt.notify_waitsome(remote, 0, 1, LIMIT).expect("notified");
        }
        rt.barrier(GroupId::ALL, LIMIT).expect("barrier");
        rt.term(LIMIT).expect("term");
    });
}

/// Who holds back everything for longer than a silent host is waited for, as a stopped process
/// does, is not dead: its kernel answers.
fn whoever_answers_to_nothing_but_the_kernel_lives() {
    let network = Network::new(1, Faults::default());
    let ledger = Ledger::new(3, false);
    let together = Barrier::new(3);
    run_through(&network, Nodes::Each, 3, |rt| {
        let mut traffic = Traffic::new(&rt, &ledger, 1);
        traffic.prepare();
        traffic.calls(30);
        if together.wait().is_leader() {
            network.shut();
        }
        together.wait();
        let start = Instant::now();
        // The default of GASPI_DEAD_AFTER is 5 s.
        while start.elapsed() < Duration::from_secs(7) {
            for rank in others(&rt) {
                let began = Instant::now();
                let error = rt.ping(rank, Timeout::Millis(300)).expect_err("nothing passes");
                assert!(error.is_timeout(), "{}: {error}", rt.rank());
                assert!(began.elapsed() < Duration::from_secs(3), "a call outlives its timeout");
                assert_eq!(rt.state(rank), Ok(State::Healthy));
            }
        }
        if together.wait().is_leader() {
            network.open();
        }
        traffic.calls(30);
        traffic.agree(GroupId::ALL, 1);
        rt.term(LIMIT).expect("term");
    });
    ledger.check_failures();
}

/// A rank dies under the traffic of all: the others know and go on, and nothing else of theirs
/// fails.
fn kill(seed: u64, nodes: Nodes, ranks: u32) {
    let network = Network::new(seed, DELAYS);
    let ledger = Ledger::new(ranks, false);
    let mut numbers = Numbers::new(seed);
    let (victim, after) = (Rank(numbers.below(ranks.into()) as u16), numbers.below(60));
    let together = Barrier::new(ranks as usize);
    run_through(&network, nodes, ranks, |rt| {
        let survivors = rt.group_create().expect("create");
        let mut traffic = Traffic::new(&rt, &ledger, seed);
        traffic.prepare();
        // Nobody dies while others have not left the barrier.
        together.wait();
        if rt.rank() == victim {
            traffic.calls(after);
            drop(traffic);
            ranks::die(rt);
            return network.end_of(victim);
        }
        traffic.victim = Some(victim);
        let start = Instant::now();
        while rt.state(victim) != Ok(State::Corrupt) {
            traffic.calls(1);
            // Ten times what is promised.
            assert!(start.elapsed() < Duration::from_secs(20), "{} does not know", rt.rank());
        }
        let error = rt.barrier(GroupId::ALL, LIMIT).expect_err("one is dead").to_string();
        assert!(error.contains(&victim.to_string()), "{}: {error}", rt.rank());
        for rank in (0..ranks).map(|rank| Rank(rank as u16)).filter(|rank| *rank != victim) {
            rt.group_add(survivors, rank).expect("add");
        }
        rt.group_commit(survivors, LIMIT).expect("commit");
        traffic.calls(10);
        for round in 1..10 {
            traffic.agree(survivors, round);
        }
        rt.term(LIMIT).expect("term");
    });
    ledger.check_failures();
}

fn deaths_are_known_and_harm_nobody_else() {
    seeds(3).for_each(|seed| kill(seed, Nodes::Each, 3));
}

fn deaths_are_known_where_links_are_mixed() {
    seeds(3).for_each(|seed| kill(seed, Nodes::Pairs, 4));
}

tests! {
    TCP:
        delays_change_nothing,
        connections_that_are_made_slowly_are_not_torn,
        cuts_lose_nothing_silently_and_kill_nobody,
        agreements_survive_cuts,
        what_is_late_undoes_nothing,
        a_member_is_asked_again_where_the_question_is_lost,
        no_message_follows_one_that_was_lost,
        the_memory_of_a_channel_comes_back_though_its_end_is_lost,
        no_notification_follows_a_write_that_was_lost,
        whoever_answers_to_nothing_but_the_kernel_lives,
        deaths_are_known_and_harm_nobody_else;
    VERBS:
        cuts_lose_nothing_that_devices_carry,
        pairs_go_with_the_connection_that_they_were_made_by;
    MIXED:
        delays_change_nothing_where_links_are_mixed,
        cuts_lose_nothing_silently_where_links_are_mixed,
        agreements_survive_cuts_where_links_are_mixed,
        deaths_are_known_where_links_are_mixed;
}
