//! Any number of ranks, each a node, that share cores: along a tree they have the bits of recursive
//! doubling, and so the mode does not matter.

use super::*;
use gaspi_collectives::algorithms::Algorithm;

const RANKS: u16 = 40;
const ROUNDED: [DataType; 4] = [DataType::F32, DataType::F64, DataType::F16, DataType::Bf16];

/// What is asked for.
const CALLS: [(Option<Algorithm>, Mode); 4] = [
    (Some(Algorithm::RecursiveDoubling), Mode::Fast),
    (Some(Algorithm::KnomialTree), Mode::Fast),
    (None, Mode::Fast),
    (None, Mode::Stable),
];

/// A group of the first ranks of a job.
fn group_of(rt: &Runtime, members: u16) -> GroupId {
    let group = rt.group_create().expect("group");
    (0..members).for_each(|rank| rt.group_add(group, Rank(rank)).expect("add"));
    rt.group_commit(group, LIMIT).expect("commit");
    group
}

/// The first ranks of a job, one after the other, and of each type.
fn a_tree_of_any_number_of_ranks_has_the_bits_of_doubling() {
    ranks::run_on_machine(RANKS.into(), MACHINES[0], |rt| {
        for members in (1..=RANKS).filter(|members| rt.rank().0 < *members) {
            let group = group_of(rt, members);
            for (turn, ty) in ROUNDED.into_iter().enumerate() {
                let op = [Operation::Sum, Operation::Average][(turn + members as usize) % 2];
                let collective = Collective::Allreduce;
                let case = Case { collective, ty, op, count: 37, root: 0 };
                let found = CALLS.map(|call| result(rt, group, &case, call));
                for (call, bits) in CALLS.iter().zip(&found) {
                    assert!(*bits == found[0], "{call:?} of {case:?}, {members} ranks");
                }
            }
            rt.group_delete(group).expect("delete");
        }
    });
}

/// Buckets of a fused buffer, of whose trees each rank is the root in turn.
fn buckets_have_the_bits_of_doubling_whoever_is_the_root() {
    ranks::run_on_machine(RANKS.into(), MACHINES[0], |rt| {
        let sizes = [3, 4, 5, 7, 8, 13, 16, 17, 24, RANKS];
        for members in sizes.into_iter().filter(|members| rt.rank().0 < *members) {
            let group = group_of(rt, members);
            for op in [Operation::Sum, Operation::Average] {
                try_buckets(rt, (group, members.into()), op);
            }
            rt.group_delete(group).expect("delete");
        }
    });
}

fn try_buckets(rt: &Runtime, (group, members): (GroupId, usize), op: Operation) {
    let case = |bucket: usize| {
        let (ty, collective) = (ROUNDED[bucket % ROUNDED.len()], Collective::Allreduce);
        Case { collective, ty, op, count: 37 + bucket, root: 0 }
    };
    let tensor = |bucket| Tensor { count: case(bucket).count as u64, ty: case(bucket).ty };
    let tensors: Vec<Tensor> = (0..members).map(tensor).collect();
    let options = Options { operation: op, threshold: 0, ..Options::default() };
    let fusion = Fusion::create(rt, &tensors, group, &options, LIMIT).expect("create");
    assert_eq!(fusion.buckets(), members);
    let me = rt.rank().index();
    for bucket in 0..members {
        let data = contribution(&case(bucket), me, members);
        // SAFETY: as many bytes as the tensor has.
        unsafe { fusion.submit(bucket, data.as_ptr(), 1.0) }.expect("submit");
    }
    for bucket in 0..members {
        let case = case(bucket);
        let mut found = vec![0; case.output_bytes(me)];
        // SAFETY: as many bytes as the tensor has.
        unsafe { fusion.wait(bucket, found.as_mut_ptr(), LIMIT) }.expect("wait");
        let doubled = result(rt, group, &case, CALLS[0]);
        assert!(found == doubled, "bucket {bucket} of {members} ranks: {case:?}");
    }
}

fn result(
    rt: &Runtime,
    group: GroupId,
    case: &Case,
    (algorithm, mode): (Option<Algorithm>, Mode),
) -> Vec<u8> {
    let around = Circumstances {
        memory: [Memory::Private; 3],
        in_place: false,
        form: Form::Waiting,
        background: false,
        order: Vec::new(),
    };
    let buffers = Buffers::new(rt, case, &around);
    let request = Request { algorithm, mode: Some(mode), ..buffers.request(case, false) };
    // SAFETY: the buffers live until the operation has ended.
    unsafe { run(rt, group, &request, LIMIT) }.expect("run");
    buffers.result(case, rt.rank().index())
}

tests! {
    TCP:
        a_tree_of_any_number_of_ranks_has_the_bits_of_doubling,
        buckets_have_the_bits_of_doubling_whoever_is_the_root;
}
