"""Collectives for scripts and for the package itself, on NumPy arrays, scalars and lists of them.

Every rank of the group calls the same function in the same order. Results are new arrays; the
arguments stay as they are. Tensors and variables of TensorFlow are taken as arrays.
"""

import ctypes
import enum
import pickle
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from . import attendance, errors, library, ranks


class ReductionOp(enum.Enum):
    """How the elements of the ranks are combined."""

    SUM = "sum"
    PROD = "prod"
    MIN = "min"
    MAX = "max"
    AND = "and"
    OR = "or"


_groups: Dict[Tuple[int, ...], int] = {}
# The largest number of a group that was made for a script.
_highest = library.GROUP_ALL


class Group:
    """Some ranks of the job. All of them use it, in the same order as others that they are in."""

    def __init__(self, ranks_of_group: Optional[Sequence[int]] = None) -> None:
        chosen = range(ranks.get_size()) if ranks_of_group is None else ranks_of_group
        self._ranks = tuple(sorted(set(int(rank) for rank in chosen)))
        if not self._ranks:
            raise ValueError("a group needs at least one rank")
        for rank in self._ranks:
            ranks.job_rank(rank)

    @property
    def group(self) -> List[int]:
        """The ranks, ascending."""
        return list(self._ranks)

    @property
    def size(self) -> int:
        """Their number."""
        return len(self._ranks)

    def contains_rank(self, rank: int) -> bool:
        """Whether a rank belongs to the group."""
        return rank in self._ranks

    def to_group_rank(self, rank: int) -> int:
        """Place of a rank in the group, from 0."""
        if rank not in self._ranks:
            raise ValueError("rank {} is not in the group {}".format(rank, list(self._ranks)))
        return self._ranks.index(rank)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and self._ranks == other._ranks

    def __hash__(self) -> int:
        return hash(self._ranks)

    def __repr__(self) -> str:
        return "Group({})".format(list(self._ranks))

    def _number(self) -> int:
        """The library's number of the group; made on first use."""
        if self.size == ranks.get_size():
            return ranks.world_group()
        if not self.contains_rank(ranks.get_rank()):
            raise ValueError(
                "rank {} is not in the group {}, so it may not take part".format(
                    ranks.get_rank(), list(self._ranks)
                )
            )
        wanted = tuple(ranks.job_rank(rank) for rank in self._ranks)
        if wanted not in _groups:
            _groups[wanted] = make_group(wanted)
        return _groups[wanted]


def make_group(numbers: Sequence[int], wanted: Optional[int] = None) -> int:
    """A new group of the library, by its own numbers of ranks.

    All members make it under the same number. Where they do not know one they take the lowest that
    is free on all of them: each may be in other groups, too.
    """
    global _highest
    ranks.world_group()
    spare: List[int] = []
    try:
        if wanted is None:
            while not spare or spare[-1] <= _highest:
                spare.append(_create_group())
            wanted = attendance.agree(numbers, spare[-1])
            _highest = wanted
        while not spare or spare[-1] < wanted:
            spare.append(_create_group())
        if spare[-1] != wanted:
            raise errors.LibraryError(
                "the number {} of a group is in use on this rank; leave numbers of groups to this"
                " package".format(wanted)
            )
        for number in numbers:
            library.call("gaspi_group_add", wanted, number)
        attendance.name_group(wanted, numbers)
        library.wait("gaspi_group_commit", wanted, group=wanted)
        spare.pop()
    finally:
        for group in spare:
            library.load().gaspi_group_delete(group)
    return wanted


def _create_group() -> int:
    """The lowest number that is free on this rank."""
    group = ctypes.c_ubyte()
    library.call("gaspi_group_create", ctypes.byref(group))
    return group.value


def last_group() -> int:
    """The largest number that a group may have."""
    number = ctypes.c_uint()
    library.call("gaspi_group_max", ctypes.byref(number))
    return number.value - 1


def forget_groups() -> None:
    """The groups that were made are not used any more: the ranks have new numbers."""
    _groups.clear()


def get_group_master_rank(group: Group) -> int:
    """The lowest rank of a group."""
    return group.group[0]


def _group_number(group: Optional[Group]) -> int:
    return ranks.world_group() if group is None else group._number()


def _group_ranks(group: Optional[Group]) -> List[int]:
    return list(range(ranks.get_size())) if group is None else group.group


def _array(value: Any) -> np.ndarray:
    if hasattr(value, "numpy") and not isinstance(value, np.ndarray):
        value = value.numpy()
    array = np.asarray(value)
    if array.dtype != np.bool_ and array.dtype.name not in library.TYPES:
        raise TypeError(
            "elements of type {} cannot be sent; use integers, floating point numbers or"
            " bool".format(array.dtype)
        )
    # The library takes numbers in the order of bytes of this machine.
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _sendable(array: np.ndarray) -> np.ndarray:
    """A contiguous array of a type that the library knows; bool goes as bytes."""
    array = np.ascontiguousarray(array)
    return array.view(np.uint8) if array.dtype == np.bool_ else array


def _type(array: np.ndarray) -> int:
    return library.TYPES[array.dtype.name]


def _like(value: Any, array: np.ndarray) -> Any:
    """The result for a scalar is a scalar of NumPy, else an array."""
    return array[()] if array.ndim == 0 else array


def _operation(op: Any) -> str:
    word = op.value if isinstance(op, ReductionOp) else str(op).lower()
    word = {"product": "prod", "mean": "average", "avg": "average"}.get(word, word)
    if word not in library.OPERATIONS:
        raise ValueError(
            "there is no reduction {!r}; use one of {}".format(
                op, ", ".join(sorted(library.OPERATIONS))
            )
        )
    return word


def _bool_operation(word: str) -> str:
    known = {"sum": "or", "max": "or", "or": "or", "prod": "and", "min": "and", "and": "and"}
    if word not in known:
        raise TypeError(
            "bool elements cannot be reduced by {}; use and, or, min, max, sum or prod".format(word)
        )
    return known[word]


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and any(
        isinstance(item, np.ndarray) or hasattr(item, "numpy") for item in value
    )


def allreduce(x: Any, op: Any = "sum", group: Optional[Group] = None) -> Any:
    """Combines `x` of all ranks, element by element. A list of arrays is reduced array by array,
    fused.
    """
    word = _operation(op)
    number = _group_number(group)
    if _is_list(x):
        return _allreduce_list([_array(item) for item in x], word, number)
    array = _array(x)
    return _like(x, _allreduce_one(array, word, number))


def _allreduce_one(array: np.ndarray, word: str, number: int) -> np.ndarray:
    as_bool = array.dtype == np.bool_
    send = _sendable(array)
    receive = np.empty_like(send)
    operation = library.OPERATIONS[_bool_operation(word) if as_bool else word]
    library.wait(
        "gaspi_coll_allreduce",
        send.ctypes.data,
        receive.ctypes.data,
        send.size,
        _type(send),
        operation,
        number,
        None,
        group=number,
    )
    receive = receive.reshape(array.shape)
    return receive.view(np.bool_) if as_bool else receive


def _allreduce_list(arrays: List[np.ndarray], word: str, number: int) -> List[np.ndarray]:
    """One all-reduce for each type among the arrays."""
    results: List[Optional[np.ndarray]] = [None] * len(arrays)
    for dtype in sorted({array.dtype.name for array in arrays}):
        places = [at for at, array in enumerate(arrays) if array.dtype.name == dtype]
        packed = np.concatenate([arrays[at].reshape(-1) for at in places])
        summed = _allreduce_one(packed, word, number)
        begin = 0
        for at in places:
            end = begin + arrays[at].size
            results[at] = summed[begin:end].reshape(arrays[at].shape)
            begin = end
    return results  # type: ignore[return-value]


def broadcast(x: Any, root: int = 0, group: Optional[Group] = None) -> Any:
    """The root's `x` on all ranks, which give arrays of the same shapes and types.

    Variables of a model or an optimizer get the root's values too.
    """
    number = _group_number(group)
    source = ranks.job_rank(root)
    if _is_list(x):
        copies = [np.array(_array(item), order="C") for item in x]
        broadcast_into(copies, source, number)
        for item, copy in zip(x, copies):
            _assign(item, copy)
        return copies
    copy = np.array(_array(x), order="C")
    broadcast_into([copy], source, number)
    _assign(x, copy)
    return _like(x, copy)


def _assign(item: Any, value: np.ndarray) -> None:
    if hasattr(item, "assign"):
        item.assign(value)


def broadcast_into(arrays: Sequence[np.ndarray], source: int, number: int) -> None:
    """Fills contiguous arrays with those of a rank (the library's number)."""
    pieces = [_sendable(array) for array in arrays]
    table = (library.Piece * max(1, len(pieces)))()
    for entry, piece in zip(table, pieces):
        entry.data, entry.count, entry.datatype = piece.ctypes.data, piece.size, _type(piece)
    library.wait(
        "gaspi_coll_broadcast_list",
        ctypes.addressof(table),
        len(pieces),
        source,
        number,
        None,
        group=number,
    )


def allgather(x: Any, group: Optional[Group] = None) -> Any:
    """The arrays of all ranks, stacked along a new first axis; shapes are the same on all ranks."""
    array = _array(x)
    send = _sendable(array)
    number, size = _group_number(group), len(_group_ranks(group))
    receive = np.empty((size,) + send.shape, send.dtype)
    library.wait(
        "gaspi_coll_allgather",
        send.ctypes.data,
        receive.ctypes.data,
        send.size,
        _type(send),
        number,
        None,
        group=number,
    )
    receive = receive.reshape((size,) + array.shape)
    return receive.view(np.bool_) if array.dtype == np.bool_ else receive


def allgatherv(x: Any, group: Optional[Group] = None) -> Any:
    """The arrays of all ranks, one behind the other along the first axis, which may differ in
    length.
    """
    if _is_list(x):
        return [allgatherv(item, group) for item in x]
    array = np.atleast_1d(_array(x))
    send = _sendable(array)
    rows = [int(count) for count in allgather(np.int64(array.shape[0]), group)]
    row, number = int(np.prod(array.shape[1:], dtype=np.int64)), _group_number(group)
    counts = (ctypes.c_uint64 * len(rows))(*(count * row for count in rows))
    receive = np.empty((sum(rows),) + array.shape[1:], send.dtype)
    library.wait(
        "gaspi_coll_allgatherv",
        send.ctypes.data,
        receive.ctypes.data,
        ctypes.addressof(counts),
        None,
        _type(send),
        number,
        None,
        group=number,
    )
    return receive.view(np.bool_) if array.dtype == np.bool_ else receive


def barrier(group: Optional[Group] = None) -> None:
    """Waits until all ranks have called it."""
    number = _group_number(group)
    library.wait("gaspi_coll_barrier", number, None, group=number)


def broadcast_object(obj: Any, root: int = 0) -> Any:
    """A Python object of the root on all ranks; for small things."""
    if ranks.get_size() == 1:
        return obj
    source, number = ranks.job_rank(root), ranks.world_group()
    data = pickle.dumps(obj) if ranks.get_rank() == root else b""
    length = np.array([len(data)], np.int64)
    broadcast_into([length], source, number)
    block = np.zeros(int(length[0]), np.uint8)
    if ranks.get_rank() == root:
        block[:] = np.frombuffer(data, np.uint8)
    broadcast_into([block], source, number)
    return obj if ranks.get_rank() == root else pickle.loads(block.tobytes())


def allgather_object(obj: Any) -> List[Any]:
    """The Python objects of all ranks, in their order; for small things."""
    if ranks.get_size() == 1:
        return [obj]
    data = np.frombuffer(pickle.dumps(obj), np.uint8)
    lengths = [int(length) for length in allgather(np.int64(data.size))]
    gathered = allgatherv(data)
    objects, begin = [], 0
    for length in lengths:
        objects.append(pickle.loads(gathered[begin : begin + length].tobytes()))
        begin += length
    return objects


class _Collective:
    """An operation as an object that may be used many times."""

    def __init__(self, group: Optional[Group]) -> None:
        self._group = group


class Allreduce(_Collective):
    """Combines arrays of the shapes and types of `inputs`."""

    def __init__(
        self, inputs: Any, op: ReductionOp = ReductionOp.SUM, group: Optional[Group] = None
    ) -> None:
        super().__init__(group)
        self._op = _operation(op)
        self._shapes = _shapes(inputs)

    def allreduce(self, inputs: Any) -> Any:
        """The combined values of all ranks."""
        _check_shapes(inputs, self._shapes)
        return allreduce(inputs, self._op, self._group)

    __call__ = allreduce


class Broadcast(_Collective):
    """Gives the root's arrays to all ranks."""

    def __init__(self, inputs: Any, root: int, group: Optional[Group] = None) -> None:
        super().__init__(group)
        self._root = root
        self._inputs = inputs
        self._shapes = _shapes(inputs)

    def broadcast(self, inputs: Any = None) -> Any:
        """The root's values; ranks that have none to give may leave them out."""
        inputs = self._inputs if inputs is None else inputs
        _check_shapes(inputs, self._shapes)
        return broadcast(inputs, self._root, self._group)

    __call__ = broadcast


class Allgatherv(_Collective):
    """Gives the arrays of each rank to all, one behind the other."""

    def __init__(self, inputs: Any, group: Optional[Group] = None) -> None:
        super().__init__(group)
        self._inputs = inputs

    def allgatherv(self, inputs: Any) -> Any:
        """The values of all ranks."""
        return allgatherv(inputs, self._group)

    __call__ = allgatherv


class Barrier(_Collective):
    """Waits for all ranks of a group."""

    def __init__(self, group: Optional[Group] = None) -> None:
        super().__init__(group)

    def barrier_all_ranks(self) -> None:
        """Returns when all ranks have called it."""
        barrier(self._group)

    __call__ = barrier_all_ranks


def _shapes(inputs: Any) -> List[Tuple[Tuple[int, ...], str]]:
    arrays = [_array(item) for item in inputs] if _is_list(inputs) else [_array(inputs)]
    return [(array.shape, array.dtype.name) for array in arrays]


def _check_shapes(inputs: Any, wanted: List[Tuple[Tuple[int, ...], str]]) -> None:
    given = _shapes(inputs)
    if given != wanted:
        raise ValueError(
            "the operation was made for {}, and got {}; make another one for other shapes".format(
                wanted, given
            )
        )
