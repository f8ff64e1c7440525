//! Arguments that make no sense: an error that says so, and nothing has happened.

use super::{ALL, Memory, call, ranks, sum_of_all};
use gaspi_collectives::algorithms::{Algorithm, Collective};
use gaspi_collectives::{
    Blocks, Combination, DataType, Operation, Request, prepare_raw, start_raw,
};
use gaspi_core::{GroupId, Rank, Runtime};
use std::ptr::{null, null_mut};

/// All ways to call are refused in the same way.
fn refused(rt: &Runtime, group: GroupId, request: &Request, what: &str) -> String {
    let first = call(rt, group, request, ranks::LIMIT).expect_err(what);
    // SAFETY: nothing is started, which is what is tested.
    let second = unsafe { start_raw(rt, group, request, ranks::LIMIT) }.expect_err(what);
    // SAFETY: nothing is started, which is what is tested.
    let third = unsafe { prepare_raw(rt, group, request, ranks::LIMIT) }.expect_err(what);
    assert_eq!((&first, &first), (&second, &third), "{what}");
    first.to_string()
}

fn memory_and_counts() {
    ranks::run(2, |rt| {
        let mut memory = Memory::new(rt.rank(), 1000);
        let good = memory.request(Collective::Allreduce, 100);
        let with = |change: &dyn Fn(&mut Request)| {
            let mut request = good.clone();
            change(&mut request);
            request
        };
        let check = |request: Request, words: &str| {
            let error = refused(rt, ALL, &request, words);
            assert!(error.contains(words), "{error} has to tell: {words}");
        };
        for collective in [Collective::Gather, Collective::Scatter, Collective::ReduceScatter] {
            let placed = Blocks { counts: vec![1, 2], displacements: vec![5, 0] };
            let blocks = vec![placed];
            let request = with(&|r| (r.collective, r.blocks) = (collective, blocks.clone()));
            check(request, "follow each other");
        }
        check(with(&|r| r.send = null()), "send");
        check(with(&|r| r.receive = null_mut()), "receive");
        check(with(&|r| r.receive = r.send.cast_mut().wrapping_add(8)), "overlap");
        check(with(&|r| r.receive = r.send.cast_mut().wrapping_add(799)), "overlap");
        for count in [u64::MAX, u64::MAX / 8, 1 << 60, i64::MAX as u64 / 8] {
            check(with(&|r| r.count = count), "elements");
        }
        let gather = |counts: Vec<u64>| {
            with(&|r| {
                r.collective = Collective::Allgather;
                r.blocks = vec![Blocks { counts: counts.clone(), displacements: Vec::new() }];
            })
        };
        check(gather(vec![1]), "2 members");
        check(gather(vec![1, 2, 3]), "2 members");
        check(gather(vec![u64::MAX, 2]), "elements");
        check(gather(vec![1 << 62, 1 << 62]), "elements");
        let lists = |collective: Collective, number: usize| {
            with(&|r| {
                r.collective = collective;
                r.blocks = vec![Blocks { counts: vec![1, 1], displacements: Vec::new() }; number];
            })
        };
        check(lists(Collective::Alltoall, 1), "lists of counts");
        check(lists(Collective::Allreduce, 1), "lists of counts");
        check(lists(Collective::Allgather, 2), "lists of counts");
        let mut uneven = lists(Collective::Alltoall, 2);
        uneven.blocks[1].counts = vec![2, 2];
        check(uneven, "sends itself");
        sum_of_all(rt, ALL, 10);
    });
}

fn roots_types_and_algorithms() {
    ranks::run(3, |rt| {
        let mut memory = Memory::new(rt.rank(), 1000);
        let good = memory.request(Collective::Broadcast, 100);
        for root in [Rank(3), Rank(u16::MAX)] {
            let error = refused(rt, ALL, &Request { root, ..good.clone() }, "root");
            assert!(error.contains("root"), "{error}");
        }
        if rt.rank() != Rank(2) {
            let pair = super::group_of(rt, [Rank(0), Rank(1)]);
            let error = refused(rt, pair, &Request { root: Rank(2), ..good.clone() }, "root");
            assert!(error.contains("no member"), "{error}");
            sum_of_all(rt, pair, 10);
        }
        for op in [Operation::And, Operation::Or, Operation::Xor] {
            let combination = Combination::BuiltIn(DataType::F32, op);
            let collective = Collective::Reduce;
            let request = Request { combination, collective, ..good.clone() };
            let error = refused(rt, ALL, &request, "bits");
            assert!(error.contains("not defined"), "{error}");
        }
        let algorithm = Some(Algorithm::Pairwise);
        let error = refused(rt, ALL, &Request { algorithm, ..good.clone() }, "algorithm");
        assert!(error.contains("pairwise") && error.contains("binomial_tree"), "{error}");
        sum_of_all(rt, ALL, 10);
    });
}

fn groups_that_cannot() {
    ranks::run(2, |rt| {
        let mut memory = Memory::new(rt.rank(), 10);
        let request = memory.request(Collective::Allreduce, 10);
        for group in [GroupId(5), GroupId(255)] {
            refused(rt, group, &request, "no group");
        }
        let empty = rt.group_create().expect("group_create");
        rt.group_add(empty, rt.rank()).expect("group_add");
        let error = refused(rt, empty, &request, "not committed");
        assert!(error.contains("commit"), "{error}");
        let own = super::group_of(rt, [rt.rank()]);
        sum_of_all(rt, own, 10);
        rt.group_delete(own).expect("group_delete");
        refused(rt, own, &request, "deleted");
    });
}

fn nothing_at_all_and_nobody_else() {
    for size in ranks::sizes(&[1, 3]) {
        ranks::run(size, |rt| {
            for collective in Collective::ALL {
                let mut request = Memory::new(rt.rank(), 0).request(collective, 0);
                (request.send, request.receive) = (null(), null_mut());
                call(rt, ALL, &request, ranks::LIMIT).expect("nothing");
                let none = Blocks { counts: vec![0; size as usize], displacements: Vec::new() };
                let lists = match collective {
                    Collective::Alltoall => 2,
                    Collective::Allgather => 1,
                    _ => continue,
                };
                request.blocks = vec![none; lists];
                call(rt, ALL, &request, ranks::LIMIT).expect("no blocks");
            }
        });
    }
    ranks::run(2, |rt| {
        let own = super::group_of(rt, [rt.rank()]);
        for collective in Collective::ALL {
            let mut memory = Memory::new(rt.rank(), 777);
            let mut request = memory.request(collective, 777);
            request.root = rt.rank();
            call(rt, own, &request, ranks::LIMIT).expect("nobody else");
            if collective != Collective::Barrier {
                assert_eq!(memory.output, memory.input, "{collective}");
            }
        }
    });
}

tests! {
    DEVICES:
        memory_and_counts,
        roots_types_and_algorithms,
        groups_that_cannot,
        nothing_at_all_and_nobody_else;
    SEVERAL:
        nothing_at_all_and_nobody_else;
}
