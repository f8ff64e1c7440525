//! Groups of many ranks. Of many nodes: whom their first collectives connect, and what ranks hear
//! that are not connected with the one that is to blame. Of one node: what ranks hear that are
//! woken by the last arrival only, and segments that are mapped at first access.

use super::{ALL, Memory, SOON, call, check_sum, counter, ranks, sum_of_all, value};
use gaspi_collectives::algorithms::Collective;
use gaspi_core::knomial_tree::KnomialTree;
use gaspi_core::{
    ChannelSpec, Config, Deadline, Error, Init, Job, Rank, Result, Runtime, SegmentId, TestMachine,
};
use ranks::LIMIT;
use std::sync::Barrier;
use std::time::Instant;

/// Ranks, each a node of its own.
const SIZE: u32 = 40;

fn run_many(body: impl Fn(Runtime) + Sync) {
    let job = |id: &str, rank: Rank| Job::in_process(id, rank, SIZE).on_node(rank.0.into());
    ranks::run_jobs(SIZE, &Config::default(), job, body);
}

/// Ranks of one node: of the second team one.
const OF_NODE: u32 = 17;

fn run_on_one_node(body: impl Fn(Runtime) + Sync) {
    let job = |id: &str, rank: Rank| Job::in_process(id, rank, OF_NODE).on_node(0);
    ranks::run_jobs(OF_NODE, &Config::default(), job, body);
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
        // Two for each power of two to begin with, or those of the root of a tree, and as many
        // again for each of the two.
        let of_root = KnomialTree::of(SIZE as usize).children(0).count();
        assert!(before <= of_root.max(2 * rounds), "{before} before");
        assert!(after <= before + 3 * rounds, "{after} connections, {before} before");
        rt.barrier(ALL, LIMIT).expect("barrier");
        rt.term(LIMIT).expect("term");
    });
}

/// The last rank dies when the others are in their first collective.
fn a_death_in_the_first_collective_ends_it_for_all() {
    let parted = Barrier::new(SIZE as usize);
    run_many(|rt| {
        connected(&rt);
        die_or_hear_of_it(rt, &parted, Rank(SIZE as u16 - 1));
    });
}

fn die_or_hear_of_it(rt: Runtime, parted: &Barrier, last: Rank) {
    parted.wait();
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
}

/// One rank does something else: all hear of it, also those that exchange no message with it.
fn a_difference_in_the_first_collective_is_told_to_all() {
    run_many(|rt| differ(rt, Rank(23)));
}

fn differ(rt: Runtime, other: Rank) {
    let count = if rt.rank() == other { 2 } else { 1 };
    let begin = Instant::now();
    let mut memory = Memory::new(rt.rank(), count as usize);
    let request = memory.request(Collective::Allreduce, count);
    let outcome = call(&rt, ALL, &request, LIMIT);
    assert!(matches!(outcome, Err(Error::Mismatch { .. })), "{}: {outcome:?}", rt.rank());
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    rt.barrier(ALL, LIMIT).expect("barrier");
    rt.term(LIMIT).expect("term");
}

fn a_death_among_many_of_a_node_ends_it_for_all() {
    let parted = Barrier::new(OF_NODE as usize);
    run_on_one_node(|rt| {
        sum_of_all(&rt, ALL, 1);
        die_or_hear_of_it(rt, &parted, Rank(3));
    });
}

fn a_difference_among_many_of_a_node_is_told_to_all() {
    for other in [Rank(0), Rank(16)] {
        run_on_one_node(|rt| differ(rt, other));
    }
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

/// Segments of a node of many ranks are mapped when they are accessed first, and so by the first
/// collective on them: the next one uses what lies in all of them where it lies.
fn data_in_segments_of_many_ranks_is_used_where_it_lies() {
    const COUNT: usize = 32 << 10;
    let machine = TestMachine { cores: None, without_cross_memory: true, networks: None };
    let job =
        |id: &str, rank: Rank| Job::in_process(id, rank, OF_NODE).on_node(0).on_machine(machine);
    ranks::run_jobs(OF_NODE, &Config::default(), job, |rt| {
        let bytes = (COUNT * size_of::<u64>()) as u64;
        let id = SegmentId(0);
        rt.segment_create(id, 2 * bytes, ALL, LIMIT, Init::Zeroed).expect("create");
        let start = rt.segment_ptr(id).expect("a segment").cast::<u64>();
        let members = rt.group_ranks(ALL).expect("members");
        let copied = [0; 3].map(|_| {
            let (input, output) = (start, start.wrapping_add(COUNT));
            for index in 0..COUNT {
                // SAFETY: inside of this rank's segment, which nobody else uses between operations.
                unsafe { input.add(index).write_volatile(value(rt.rank(), index)) };
            }
            let before = counter(&rt, "BytesCopiedByCollectives");
            let mut request =
                Memory::new(rt.rank(), 0).request(Collective::Allreduce, COUNT as u64);
            (request.send, request.receive) = (input.cast(), output.cast());
            call(&rt, ALL, &request, LIMIT).expect("allreduce");
            // SAFETY: inside of the segment; the operation has ended.
            check_sum(unsafe { std::slice::from_raw_parts(output, COUNT) }, &members);
            counter(&rt, "BytesCopiedByCollectives") - before
        });
        assert!(copied[0] >= bytes && copied[1..] == [0, 0], "{copied:?} of {bytes} bytes");
        rt.barrier(ALL, LIMIT).expect("barrier");
        rt.term(LIMIT).expect("term");
    });
}

tests! {
    SHM:
        a_death_among_many_of_a_node_ends_it_for_all,
        a_difference_among_many_of_a_node_is_told_to_all,
        data_in_segments_of_many_ranks_is_used_where_it_lies;
    TCP:
        the_first_collectives_connect_those_that_send_each_other_something,
        a_death_in_the_first_collective_ends_it_for_all,
        a_difference_in_the_first_collective_is_told_to_all,
        nodes_of_different_sizes_hear_of_each_other;
}
