"""Collectives for scripts: each type and operation beside NumPy, groups, roots, lists, classes."""

from typing import Any, List

import cases
from cases import RANK, SIZE, case, np, raises, tf, tnt

INTEGERS = [sign + str(bits) for sign in ("int", "uint") for bits in (8, 16, 32, 64)]
FLOATS = ["float16", "float32", "float64"]
TYPES = INTEGERS + FLOATS + ["bool"]
Op = tnt.ReductionOp
UFUNCS = {
    Op.SUM: np.add,
    Op.PROD: np.multiply,
    Op.MIN: np.minimum,
    Op.MAX: np.maximum,
    Op.AND: np.bitwise_and,
    Op.OR: np.bitwise_or,
}
OF_BOOL = {Op.SUM: Op.OR, Op.MAX: Op.OR, Op.PROD: Op.AND, Op.MIN: Op.AND}


def own(dtype: str, rank: int = RANK, shape: Any = (5, 7)) -> Any:
    """What a rank gives: small whole numbers, of which sums and products are exact in f16."""
    numbers = np.random.default_rng(100 + rank).integers(0, 5, shape)
    return numbers % 2 == 0 if dtype == "bool" else numbers.astype(dtype)


def expected(dtype: str, op: Any, members: Any = None, shape: Any = (5, 7)) -> Any:
    """The reduction of what the ranks give, by NumPy."""
    members = range(SIZE) if members is None else members
    given = [own(dtype, rank, shape) for rank in members]
    ufunc = UFUNCS[OF_BOOL.get(op, op) if dtype == "bool" else op]
    return ufunc.reduce(np.stack(given), axis=0).astype(dtype)


def equal(result: Any, reference: Any) -> None:
    """Equal values, of the same shape and type."""
    reference = np.asarray(reference)
    assert isinstance(result, (np.ndarray, np.generic)), type(result)
    assert result.dtype == reference.dtype, (result.dtype, reference.dtype)
    assert result.shape == reference.shape, (result.shape, reference.shape)
    assert np.array_equal(result, reference), (result, reference)


@case
def every_type_and_operation() -> None:
    for dtype in TYPES:
        for op in Op:
            mine = own(dtype)
            if dtype in FLOATS and op in (Op.AND, Op.OR):
                raises(tnt.LibraryError, "is not defined for", lambda: tnt.allreduce(mine, op))
                continue
            for word in (op, op.value, op.value.upper()):
                equal(tnt.allreduce(mine, word), expected(dtype, op))
            equal(tnt.Allreduce(mine, op).allreduce(mine), expected(dtype, op))
            equal(tnt.allreduce(mine[0, 0], op), expected(dtype, op)[0, 0])
            equal(mine, own(dtype))


@case
def operations_beyond_the_documented() -> None:
    mine = np.arange(4) + RANK
    mean = np.mean([np.arange(4.0) + rank for rank in range(SIZE)], axis=0)
    for word in ("average", "mean"):
        assert np.allclose(tnt.allreduce(mine.astype(float), word), mean)
    others = [np.arange(4) + rank for rank in range(SIZE)]
    equal(tnt.allreduce(mine, "xor"), np.bitwise_xor.reduce(others))
    raises(ValueError, "no reduction 'median'", lambda: tnt.allreduce(mine, "median"))
    raises(TypeError, "bool", lambda: tnt.allreduce(mine > 0, "xor"))


@case
def what_cannot_be_sent_is_refused() -> None:
    for value in (1j, "text", [None], np.zeros(2, "datetime64[s]")):
        for call in (tnt.allreduce, tnt.broadcast, tnt.allgather, tnt.allgatherv):
            raises(TypeError, "cannot be sent", lambda: call(value))


@case
def gathers_of_every_type() -> None:
    for dtype in TYPES:
        equal(tnt.allgather(own(dtype)), np.stack([own(dtype, rank) for rank in range(SIZE)]))
        each = [own(dtype, rank, (rank + 1, 3)) for rank in range(SIZE)]
        whole = np.concatenate(each)
        equal(tnt.allgatherv(each[RANK]), whole)
        gather = tnt.Allgatherv(each[RANK])
        equal(gather.allgatherv(each[RANK]), whole)
        equal(gather(each[RANK]), whole)
    equal(tnt.allgather(RANK), np.arange(SIZE))
    equal(tnt.allgatherv(RANK), np.arange(SIZE))
    # Ranks may have nothing to give.
    equal(tnt.allgatherv(np.ones((RANK, 2))), np.ones((SIZE * (SIZE - 1) // 2, 2)))
    lists = tnt.allgatherv([np.full(RANK + 1, RANK), np.zeros(1, bool)])
    equal(lists[0], np.repeat(np.arange(SIZE), np.arange(SIZE) + 1))
    equal(lists[1], np.zeros(SIZE, bool))


@case
def broadcasts_of_every_type_and_root() -> None:
    for dtype in TYPES:
        for root in range(SIZE):
            mine = own(dtype)
            equal(tnt.broadcast(mine, root=root), own(dtype, root))
            equal(tnt.broadcast(mine[1, 1], root=root), own(dtype, root)[1, 1])
            equal(tnt.Broadcast(mine, root).broadcast(mine), own(dtype, root))
            equal(tnt.Broadcast(mine, root)(), own(dtype, root))
            equal(mine, own(dtype))
    for root in (-1, SIZE):
        raises(ValueError, "rank {} does not exist".format(root), lambda: tnt.broadcast(1, root))


@case
def lists_of_arrays() -> None:
    def mixed(rank: int) -> List[Any]:
        types = [(dtype, shape) for dtype in TYPES for shape in ((3,), (), (0, 2), (2, 2))]
        return [np.asarray(own(dtype, rank, shape)) for dtype, shape in types]

    mine = mixed(RANK)
    given = [mixed(rank) for rank in range(SIZE)]
    for result in (tnt.allreduce(mine, "max"), tnt.Allreduce(tuple(mine), Op.MAX)(mine)):
        assert isinstance(result, list) and len(result) == len(mine)
        for at, array in enumerate(result):
            equal(array, np.maximum.reduce([each[at] for each in given]))
    for root in range(SIZE):
        for result in (tnt.broadcast(mine, root), tnt.Broadcast(mine, root).broadcast()):
            for array, reference in zip(result, given[root]):
                equal(array, reference)
    # One of plain numbers is an array.
    equal(tnt.allreduce([1.0, RANK]), np.array([SIZE, SIZE * (SIZE - 1) / 2]))
    equal(tnt.allreduce([]), np.zeros(0))


@case
def arrays_in_any_order_in_memory() -> None:
    for view in (
        lambda array: array.T,
        lambda array: array[::2, ::-1],
        np.asfortranarray,
        lambda array: array.astype(array.dtype.newbyteorder()),
    ):
        for dtype in ("int32", "float64"):
            mine, others = view(own(dtype)), [view(own(dtype, rank)) for rank in range(SIZE)]
            native = [np.array(each, dtype) for each in others]
            equal(tnt.allreduce(mine), np.add.reduce(native, dtype=dtype))
            equal(tnt.allreduce([mine, mine])[1], np.add.reduce(native, dtype=dtype))
            equal(tnt.broadcast(mine, SIZE - 1), native[-1])
            equal(tnt.allgather(mine), np.stack(native))
            equal(tnt.allgatherv(mine), np.concatenate(native))


@case
def groups_are_values() -> None:
    group = tnt.Group([SIZE - 1, 0, 0])
    assert group == tnt.Group((0, SIZE - 1)) and len({group, tnt.Group([0, SIZE - 1])}) == 1
    assert tnt.Group().group == list(range(SIZE))
    assert (tnt.Group() == tnt.Group([0])) == (SIZE == 1)
    assert group.group == sorted({0, SIZE - 1}) and group.size == len(group.group)
    assert group.contains_rank(SIZE - 1) and not group.contains_rank(SIZE)
    assert group.to_group_rank(SIZE - 1) == group.size - 1
    assert tnt.get_group_master_rank(tnt.Group([SIZE - 1])) == SIZE - 1
    raises(ValueError, "not in the group", lambda: group.to_group_rank(SIZE))
    raises(ValueError, "at least one rank", lambda: tnt.Group([]))
    raises(ValueError, "does not exist", lambda: tnt.Group([SIZE]))
    # More of them than the library has groups.
    for number in range(300):
        equal(tnt.allreduce(number, group=tnt.Group([RANK])), np.int64(number))


@case
def collectives_of_groups() -> None:
    # Ranks are in different numbers of them.
    chosen = ([0], [SIZE - 1], range(1, SIZE), {0, SIZE - 1}, range(0, SIZE, 2), range(SIZE - 1))
    for members in [sorted(each) for each in chosen if each]:
        group = tnt.Group(members)
        if RANK not in members:
            raises(ValueError, "may not take part", lambda: tnt.allreduce(1, group=group))
            raises(ValueError, "may not take part", tnt.Barrier(group))
            continue
        given = [own("int32", rank) for rank in members]
        mine = own("int32")
        equal(tnt.allreduce(mine, group=group), expected("int32", Op.SUM, members))
        equal(tnt.Allreduce(mine, Op.MIN, group)(mine), expected("int32", Op.MIN, members))
        equal(tnt.allreduce([mine, mine], "max", group)[1], expected("int32", Op.MAX, members))
        equal(tnt.allgather(mine, group), np.stack(given))
        equal(tnt.allgatherv(mine, group), np.concatenate(given))
        equal(tnt.Allgatherv(mine, group)(mine), np.concatenate(given))
        # Roots are ranks of the job.
        for root in members:
            equal(tnt.broadcast(mine, root, group), own("int32", root))
            equal(tnt.Broadcast(mine, root, group)(mine), own("int32", root))
        tnt.barrier(group)
        tnt.Barrier(group).barrier_all_ranks()
    tnt.barrier()
    tnt.Barrier()()


@case
def objects_are_used_again_with_their_shapes() -> None:
    reduce, send = tnt.Allreduce(np.zeros(3)), tnt.Broadcast([np.zeros(3), np.int8(1)], 0)
    for number in range(3):
        equal(reduce(np.full(3, float(number))), np.full(3, float(number * SIZE)))
        result = send([np.full(3, float(number + RANK)), np.int8(RANK)])
        equal(result[0], np.full(3, float(number)))
        equal(result[1], np.int8(0))
    for other in (np.zeros(4), np.zeros(3, "float32"), [np.zeros(3), np.zeros(3)]):
        raises(ValueError, "the operation was made for", lambda: reduce(other))
        raises(ValueError, "the operation was made for", lambda: send(other))


@case
def tensors_and_variables() -> None:
    for dtype in ("float32", "int64", "bool"):
        mine = tf.constant(own(dtype))
        equal(tnt.allreduce(mine), expected(dtype, Op.SUM))
        equal(tnt.Allreduce(mine, Op.MAX)(mine), expected(dtype, Op.MAX))
        equal(tnt.broadcast(mine, SIZE - 1), own(dtype, SIZE - 1))
        equal(tnt.allgather(mine), np.stack([own(dtype, rank) for rank in range(SIZE)]))
        equal(tnt.allgatherv(mine), np.concatenate([own(dtype, rank) for rank in range(SIZE)]))
        equal(tnt.allreduce([mine, mine])[1], expected(dtype, Op.SUM))
        # A variable takes what is broadcast, and nothing else.
        variable = tf.Variable(mine)
        equal(tnt.allreduce(variable), expected(dtype, Op.SUM))
        equal(variable.numpy(), own(dtype))
        equal(tnt.broadcast(variable, SIZE - 1), own(dtype, SIZE - 1))
        equal(variable.numpy(), own(dtype, SIZE - 1))
    half = tf.constant([1.5 + RANK], tf.bfloat16)
    found = tnt.allreduce(half).astype("float32")
    equal(found, np.array([1.5 * SIZE + SIZE * (SIZE - 1) / 2], "float32"))


if __name__ == "__main__":
    cases.run()
