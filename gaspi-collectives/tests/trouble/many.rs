//! The first collectives of a group of many nodes, in which few ranks are connected: whom they
//! connect, and what ranks hear that are not connected with the one that is to blame.

use super::{ALL, Memory, SOON, call, ranks, sum_of_all};
use gaspi_collectives::algorithms::Collective;
use gaspi_core::{ChannelSpec, Config, Deadline, Error, Job, Rank, Result, Runtime};
use ranks::LIMIT;
use std::sync::Barrier;
use std::time::Instant;

/// Ranks, each a node of its own.
const SIZE: u32 = 40;

fn run_many(body: impl Fn(Runtime) + Sync) {
    let job = |id: &str, rank: Rank| Job::in_process(id, rank, SIZE).on_node(rank.0.into());
    ranks::run_jobs(SIZE, &Config::default(), job, body);
}

/// With how many others a rank is connected.
fn connected(rt: &Runtime) -> usize {
    let spec = ChannelSpec { slots: 1, message_bytes: 64, stage_bytes: 64 };
    let channel = rt.channel_open(ALL, spec, LIMIT).expect("a channel");
    let others = (0..SIZE as usize).filter(|member| *member != channel.me());
    others.filter(|member| channel.is_in_touch(*member)).count()
}

fn barrier(rt: &Runtime) -> Result<()> {
    let request = Memory::new(rt.rank(), 0).request(Collective::Barrier, 0);
    call(rt, ALL, &request, LIMIT)
}

fn the_first_collectives_connect_those_that_send_each_other_something() {
    run_many(|rt| {
        let rounds = SIZE.next_power_of_two().trailing_zeros() as usize;
        let before = connected(&rt);
        barrier(&rt).expect("barrier");
        sum_of_all(&rt, ALL, 1);
        let after = connected(&rt);
        // Two for each power of two to begin with, and as many again for each of the two.
        assert!(before <= 2 * rounds, "{before} before");
        assert!(after <= before + 3 * rounds, "{after} connections, {before} before");
        rt.barrier(ALL, LIMIT).expect("barrier");
        rt.term(LIMIT).expect("term");
    });
}

/// The last rank dies when the others are in their first collective.
fn a_death_in_the_first_collective_ends_it_for_all() {
    let (ready, parted) = (Barrier::new(SIZE as usize), Barrier::new(SIZE as usize));
    let last = Rank(SIZE as u16 - 1);
    run_many(|rt| {
        connected(&rt);
        ready.wait();
        if rt.rank() == last {
            ranks::die(rt);
            parted.wait();
            return;
        }
        let begin = Instant::now();
        let mut memory = Memory::new(rt.rank(), 1);
        let request = memory.request(Collective::Allreduce, 1);
        let outcome = call(&rt, ALL, &request, LIMIT);
        let told = matches!(outcome, Err(Error::RankDied { rank, .. }) if rank == last);
        assert!(told, "{}: {outcome:?}", rt.rank());
        assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
        parted.wait();
        rt.term(LIMIT).expect("term");
    });
}

/// One rank does something else: all hear of it, also those that exchange no message with it.
fn a_difference_in_the_first_collective_is_told_to_all() {
    run_many(|rt| {
        let count = if rt.rank() == Rank(23) { 2 } else { 1 };
        let begin = Instant::now();
        let mut memory = Memory::new(rt.rank(), count as usize);
        let request = memory.request(Collective::Allreduce, count);
        let outcome = call(&rt, ALL, &request, LIMIT);
        assert!(matches!(outcome, Err(Error::Mismatch { .. })), "{}: {outcome:?}", rt.rank());
        assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
        rt.barrier(ALL, LIMIT).expect("barrier");
        rt.term(LIMIT).expect("term");
    });
}

/// A rank of a large node, which sees few others elsewhere, asks one of a small node, which sees
/// many and so has told only those that it is connected with.
fn nodes_of_different_sizes_hear_of_each_other() {
    const LARGE: u16 = 20;
    const SMALL: u16 = 12;
    let (teller, asker) = (Rank(LARGE + 10), Rank(5));
    let (told, heard) =
        (Barrier::new((LARGE + SMALL).into()), Barrier::new((LARGE + SMALL).into()));
    let size = u32::from(LARGE + SMALL);
    let job =
        |id: &str, rank: Rank| Job::in_process(id, rank, size).on_node(u64::from(rank.0 >= LARGE));
    ranks::run_jobs(size, &Config::default(), job, |rt| {
        let spec = ChannelSpec { slots: 1, message_bytes: 64, stage_bytes: 64 };
        let channel = rt.channel_open(ALL, spec, LIMIT).expect("a channel");
        if rt.rank() == teller {
            channel.publish_notice([7; 6]);
        }
        told.wait();
        if rt.rank() == asker {
            let member = usize::from(teller.0);
            assert!(!channel.is_in_touch(member), "they are connected");
            let notice = channel.wait_for(Deadline::Never.at_most(SOON), || {
                channel.ask_for_notice(member);
                channel.read_notice(member)
            });
            assert_eq!(notice, Some([7; 6]));
        }
        heard.wait();
        drop(channel);
        rt.term(LIMIT).expect("term");
    });
}

tests! {
    TCP:
        the_first_collectives_connect_those_that_send_each_other_something,
        a_death_in_the_first_collective_ends_it_for_all,
        a_difference_in_the_first_collective_is_told_to_all,
        nodes_of_different_sizes_hear_of_each_other;
}
