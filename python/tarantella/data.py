"""Dividing data among the ranks.

A batch of `b` samples is cut into contiguous slices: each rank takes `b // p` samples, the first `b
% p` ranks one more. A rank without a sample takes the first one as a stand-in, which must change
nothing.

Datasets made here yield `(element, share)`. `share` is a dict of int64: `local`, samples of this
rank, 0 for a stand-in; `global`, samples of the batch, 0 where only the ranks together know it
(each feeds its own data); and, when batches are compared, `fingerprint`, two numbers that are equal
on all ranks for equal batches.

Every rank runs the dataset of the user up to the cut, so it must be the same on all ranks. Datasets
are never looked at beforehand: an iteration more would change the order that a shuffled dataset
gives next.
"""

from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np
import tensorflow as tf

from . import operators, ranks

AUTOTUNE = tf.data.AUTOTUNE
# Batches that are read ahead.
AHEAD = 2
# Datasets of TensorFlow in which its autotuner sets nothing that another default does not do.
_UNTUNED = frozenset(
    (kind + "Dataset")
    for kind in (
        "AssertCardinality Batch Cache Concatenate DenseToRagged Filter FlatMap Generator"
        " IgnoreErrors Interleave Map Options PaddedBatch Prefetch Random Range Rebatch Repeat"
        " Restructured Scan Shard Shuffle Skip SparseTensorSlice Take TakeWhile Tensor TensorSlice"
        " Unbatch Unique Window Zip"
    ).split()
)
_no_convert = tf.autograph.experimental.do_not_convert
_FINGERPRINT_VALUES = 8


# ==== The rule ====


def bounds(batch: Any, num_ranks: int, rank: int) -> Tuple[Any, Any]:
    """First sample and number of samples of a rank; of numbers or of tensors."""
    each, more = batch // num_ranks, batch % num_ranks
    if isinstance(batch, (int, np.integer)):
        return each * rank + min(rank, more), each + (1 if rank < more else 0)
    return each * rank + tf.minimum(more, rank), (batch + (num_ranks - 1 - rank)) // num_ranks


def sizes(batch: int, num_ranks: int) -> List[int]:
    """Samples of each rank."""
    return [bounds(batch, num_ranks, rank)[1] for rank in range(num_ranks)]


def describe(batch: int, num_ranks: int) -> str:
    """`64 = 16 x 4 ranks`, `100 = 1 x 34 + 2 x 33 on 3 ranks`."""
    each, more = divmod(batch, num_ranks)
    if more == 0:
        return "{} = {} x {} ranks".format(batch, each, num_ranks)
    return "{} = {} x {} + {} x {} on {} ranks".format(
        batch, more, each + 1, num_ranks - more, each, num_ranks
    )


# ==== Elements ====


def leaves(element: Any) -> List[Any]:
    """The tensors, or the specifications of tensors, of an element."""
    return [leaf for leaf in tf.nest.flatten(element) if getattr(leaf, "shape", None) is not None]


def _rows(leaf: Any) -> Any:
    """Samples in a tensor: a number where it is fixed, else a tensor."""
    fixed = None if leaf.shape.rank is None else leaf.shape[0]
    if fixed is not None:
        return int(fixed)
    if isinstance(leaf, tf.RaggedTensor):
        return tf.cast(leaf.nrows(), tf.int64)
    if isinstance(leaf, tf.SparseTensor):
        return tf.cast(leaf.dense_shape[0], tf.int64)
    return tf.shape(leaf, out_type=tf.int64)[0]


def check_batched(spec: Any) -> None:
    """Raises ValueError unless all tensors of an element have a first dimension, of one length."""
    lengths = set()
    for leaf in leaves(spec):
        if leaf.shape.rank == 0:
            raise ValueError(
                "the dataset yields single samples or scalars: {}; batch it with the global batch"
                " size, dataset.batch(64), or pass tnt_micro_batch_size".format(spec)
            )
        if leaf.shape.rank is not None and leaf.shape[0] is not None:
            lengths.add(int(leaf.shape[0]))
    if len(lengths) > 1:
        raise ValueError(
            "the parts of a batch have different numbers of samples, {}: {}".format(
                ", ".join(str(length) for length in sorted(lengths)), spec
            )
        )


def static_batch(spec: Any) -> Optional[int]:
    """Samples of each batch if the dataset fixes them, else None."""
    for leaf in leaves(spec):
        if leaf.shape.rank and leaf.shape[0] is not None:
            return int(leaf.shape[0])
    return None


def _batch_of(element: Any) -> Any:
    counts = [_rows(leaf) for leaf in leaves(element)]
    if not counts:
        raise ValueError("the dataset yields elements without a tensor")
    fixed = [count for count in counts if isinstance(count, int)]
    if fixed:
        return fixed[0]
    text = tf.constant("the parts of a batch have different numbers of samples")
    with tf.control_dependencies(
        [
            tf.raw_ops.Assert(condition=tf.equal(count, counts[0]), data=[text])
            for count in counts[1:]
        ]
    ):
        return tf.identity(counts[0])


def _take(leaf: Any, begin: Any, count: Any) -> Any:
    if leaf is None:
        return None
    if isinstance(leaf, tf.SparseTensor):
        rest = leaf.dense_shape[1:]
        start = tf.concat([[tf.cast(begin, tf.int64)], tf.zeros_like(rest)], 0)
        return tf.sparse.slice(leaf, start, tf.concat([[tf.cast(count, tf.int64)], rest], 0))
    return leaf[begin : begin + count]


def _between(leaf: tf.Tensor, begin: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    return tf.strided_slice(leaf, begin, end, [1])


def _as_number(batch: Any) -> tf.Tensor:
    return tf.constant(batch, tf.int64) if isinstance(batch, int) else batch


def cut(element: Any, num_ranks: int, rank: int) -> Tuple[Any, Dict[str, tf.Tensor]]:
    """The slice of a rank and its share. Lengths stay fixed where the batch has a fixed one."""
    batch = _batch_of(element)
    if num_ranks == 1:
        return element, {"local": _as_number(batch), "global": _as_number(batch)}
    begin, local = bounds(batch, num_ranks, rank)
    if isinstance(batch, int):
        begin, count = (begin, local) if local else (0, min(1, batch))
    else:
        # Few operators: an iterator takes time for each of them, once in an epoch.
        begin = begin * tf.minimum(local, 1)
        count = tf.maximum(local, tf.minimum(batch, 1))
    part = tf.nest.map_structure(lambda leaf: _take(leaf, begin, count), element)
    return part, {"local": _as_number(local), "global": _as_number(batch)}


def fingerprint(element: Any, batch: Any) -> tf.Tensor:
    """Two int64 of a few elements of a batch and of its length."""
    parts = [tf.reshape(tf.bitcast(_as_number(batch), tf.uint8), [-1])]
    for leaf in leaves(element):
        if isinstance(leaf, tf.RaggedTensor):
            leaf = leaf.flat_values
        elif isinstance(leaf, tf.SparseTensor):
            leaf = leaf.values
        flat = tf.reshape(leaf, [-1])
        length = tf.size(flat, out_type=tf.int64)
        steps = tf.constant(np.arange(_FINGERPRINT_VALUES))
        places = steps * tf.maximum(length - 1, 0) // (_FINGERPRINT_VALUES - 1)
        number = tf.minimum(length, _FINGERPRINT_VALUES)
        few = tf.gather(flat, tf.slice(places, [0], [number]))
        if few.dtype == tf.string:
            few = tf.strings.to_hash_bucket_fast(few, 2**62)
        elif few.dtype == tf.bool:
            few = tf.cast(few, tf.uint8)
        parts.append(tf.reshape(tf.bitcast(few, tf.uint8), [-1]))
    data = tf.concat(parts, 0)
    both = tf.fingerprint(tf.stack([data, tf.reverse(data, [0])]))
    return tf.bitcast(both, tf.int64)


# ==== Watching and cutting batches ====


class Watch:
    """Notes the batch sizes as the dataset meets them, and checks the first one.

    `check(batch)` raises ValueError for a first batch that will not do. The error surfaces in the
    loop as one of TensorFlow's; `error` keeps the original.
    """

    def __init__(self, check: Optional[Callable[[int], None]] = None) -> None:
        self._sizes: Optional[operators.BatchSizes] = None
        self.begin(check)

    def begin(self, check: Optional[Callable[[int], None]] = None) -> None:
        """Has met nothing yet."""
        self.first: Optional[int] = None
        self.other: Dict[int, int] = {}
        self.error: Optional[BaseException] = None
        self._check = check

    @property
    def number(self) -> int:
        """The number by which the operator for batches of numbers tells of sizes."""
        if self._sizes is None:
            self._sizes = operators.BatchSizes(self._refuses)
        return self._sizes.number

    def _refuses(self, index: int, batch: int) -> int:
        try:
            self.see(index, batch)
        except ValueError:
            return 1
        return 0

    def see(self, index: Any, batch: Any) -> np.int64:
        """Called for the first batch of an iteration and for each that has another size."""
        index, batch = int(index), int(batch)
        if self.first is None:
            self.first = batch
            if self._check is not None:
                try:
                    self._check(batch)
                except ValueError as error:
                    self.error = error
                    raise
        if batch != self.first:
            self.other[index] = batch
        return np.int64(0)

    def batch_at(self, index: int) -> int:
        """Size of a batch that has been met."""
        return self.other.get(index, self.first or 0)


class Division:
    """How a dataset is cut, and what is noted and compared of its batches.

    The state of an iteration is the index of the next batch and the size of the first one, -1
    before it. One operator of ours cuts tensors of numbers and makes their fingerprint, since
    iterators take time for each operator; other elements are cut by operators of TensorFlow.
    """

    _COMPARES = {"off": 0, "step": 1, "epoch": 2}

    def __init__(
        self,
        num_ranks: int,
        rank: int,
        watch: Optional[Watch],
        compare: str,
        compared: Optional[Callable],
    ) -> None:
        self._place = (num_ranks, rank)
        self._watch = watch
        self._compare = compare
        self._compared = compared or (lambda element: element)

    def cut(self, state: Any, element: Any) -> Tuple[Any, Any, Dict[str, tf.Tensor]]:
        """The next state, the part of this rank and its share."""
        compared = [] if self._compare == "off" else tf.nest.flatten(self._compared(element))
        tensors = [leaf for leaf in tf.nest.flatten(element) if leaf is not None]
        compared = [leaf for leaf in compared if leaf is not None]
        if tensors and all(operators.is_plain(leaf) for leaf in tensors + compared):
            return self._cut_numbers(state, element, tensors, compared)
        return self._cut_any(state, element)

    def _cut_numbers(
        self, state: Any, element: Any, tensors: List[Any], compared: List[Any]
    ) -> Tuple[Any, Any, Dict[str, tf.Tensor]]:
        num_ranks, rank = self._place
        found = operators.load().tarantella_cut(
            parts=tensors,
            compared=compared,
            index=state[0],
            first=state[1],
            ranks=num_ranks,
            rank=rank,
            compare=self._COMPARES[self._compare],
            watch=-1 if self._watch is None else self._watch.number,
        )
        for name, shape in zip(found._fields, ([1], [1], [], [], [], [], [2])):
            getattr(found, name).set_shape(shape)
        if num_ranks == 1:
            part = element
        elif static_batch(element) is not None:
            # Lengths stay fixed where those of the batch are.
            part, _ = cut(element, num_ranks, rank)
        else:
            part = tf.nest.map_structure(
                lambda leaf: None if leaf is None else _between(leaf, found.begin, found.end),
                element,
            )
        share = {"local": found.local, "global": found.batch}
        if self._compare != "off":
            share["fingerprint"] = found.fingerprint
        return (found.next, found.known), part, share

    def _cut_any(self, state: Any, element: Any) -> Tuple[Any, Any, Dict[str, tf.Tensor]]:
        index, first = state
        watch = self._watch
        part, share = cut(element, *self._place)
        batch = share["global"]
        if watch is not None:
            tf.cond(
                tf.equal(batch, first),
                lambda: tf.constant(0, tf.int64),
                lambda: tf.ensure_shape(tf.numpy_function(watch.see, [index, batch], tf.int64), []),
            )
        if self._compare != "off":

            def make() -> tf.Tensor:
                return tf.ensure_shape(fingerprint(self._compared(element), batch), [2])

            share["fingerprint"] = (
                make()
                if self._compare == "step"
                else tf.cond(tf.equal(index, 0), make, lambda: tf.zeros([2], tf.int64))
            )
        return (index + 1, tf.where(first < 0, batch, first)), part, share


# ==== Datasets ====


def divide(
    dataset: tf.data.Dataset,
    num_ranks: int,
    rank: int,
    watch: Optional[Watch] = None,
    compare: str = "off",
    transform: Optional[Callable] = None,
    compared: Optional[Callable] = None,
) -> tf.data.Dataset:
    """The slices of a rank, as `(element, share)`.

    `compare` says in which steps the share has a fingerprint that counts: "step", "epoch" (the
    first of an iteration; 0 in others) or "off". `transform` is applied to the slice, `compared`
    gives the part of the batch that the fingerprint is made of.
    """
    check_batched(dataset.element_spec)
    division = Division(num_ranks, rank, watch, compare, compared)

    @_no_convert
    def one(state: Any, element: Any) -> Any:
        state, part, share = division.cut(state, element)
        return state, (part if transform is None else transform(part), share)

    divided = dataset.scan((tf.constant(0, tf.int64), tf.constant(-1, tf.int64)), one)
    # The operator tells of sizes who is there.
    divided._tarantella_watch = watch
    return divided


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The dataset without TensorFlow's autotuner where that has nothing to set.

    The autotuner wakes after 10 ms, 20 ms and so on up to a minute. An iterator that ends has it
    stop, but that word is often lost, and then the end of an epoch waits for its next turn: as long
    as the epoch took. What the dataset's own options say stays.
    """
    if dataset.options().autotune.enabled is not None or _is_tuned(dataset):
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def _is_tuned(dataset: tf.data.Dataset) -> bool:
    return type(dataset).__name__.lstrip("_") not in _UNTUNED or any(
        _is_tuned(each) for each in dataset._inputs()
    )


def undivided(dataset: tf.data.Dataset, watch: Optional[Watch] = None) -> tf.data.Dataset:
    """All of a rank's own data, as `(element, share)`; the size of the global batch is not known
    here. That the share has `own` tells steps so: they are traced anew where that differs.
    """
    check_batched(dataset.element_spec)

    def one(part: Any, share: Dict[str, tf.Tensor]) -> Any:
        local = share["local"]
        return part, {"local": local, "global": tf.zeros_like(local), "own": local}

    return divide(dataset, 1, 0, watch).map(_no_convert(one))


def deal(dataset: tf.data.Dataset, num_ranks: int, rank: int) -> tf.data.Dataset:
    """Whole batches in turn: batch `i` goes to rank `i % p`. What predict takes, whose results then
    have the bits of one rank: a batch of another size may be summed in another order.
    """
    return dataset if num_ranks == 1 else dataset.shard(num_ranks, rank)


def preprocess_samples(
    dataset: tf.data.Dataset, preprocess: Callable, calls: Any
) -> tf.data.Dataset:
    """Applies `preprocess` to each sample of the slices of a dataset of `(element, share)`."""

    @_no_convert
    def one(part: Any, share: Any) -> tf.data.Dataset:
        samples = tf.data.Dataset.from_tensor_slices(part)
        if isinstance(part, tuple):

            def call(*sample: Any) -> Any:
                return preprocess(*sample)

        else:

            def call(sample: Any) -> Any:
                return preprocess(sample)

        count = tf.maximum(share["local"], 1)
        done = samples.map(call, num_parallel_calls=calls, deterministic=True).batch(count)
        return tf.data.Dataset.zip((done, tf.data.Dataset.from_tensors(share)))

    length = dataset.cardinality()
    return dataset.flat_map(one).apply(tf.data.experimental.assert_cardinality(length))


class Dataset:
    """What `fit` makes of a dataset: the slices of this rank.

    Iterating yields elements; `weights` yields `(element, weight)` with the weight of the element's
    gradient, samples of this rank by samples of all, 0 for a stand-in. `num_ranks` and `rank` are
    those of the job unless given.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        num_ranks: Optional[int] = None,
        rank: Optional[int] = None,
        preprocess: Optional[Callable] = None,
        num_parallel_calls: Any = AUTOTUNE,
    ) -> None:
        if isinstance(dataset, Dataset):
            preprocess = dataset.preprocess if preprocess is None else preprocess
            num_parallel_calls, dataset = dataset.num_parallel_calls, dataset.dataset
        if not isinstance(dataset, tf.data.Dataset):
            raise TypeError(
                "tnt.data.Dataset takes a tf.data.Dataset batched with the global batch size,"
                " not {}".format(type(dataset).__name__)
            )
        if num_ranks is not None and num_ranks < 1:
            raise ValueError("num_ranks is {}; it has to be at least 1".format(num_ranks))
        if rank is not None and not 0 <= rank < (num_ranks or ranks.get_size()):
            raise ValueError(
                "rank {} does not exist among {} ranks".format(rank, num_ranks or ranks.get_size())
            )
        check_batched(dataset.element_spec)
        self.dataset = dataset
        self.preprocess = preprocess
        self.num_parallel_calls = num_parallel_calls
        self._num_ranks = num_ranks
        self._rank = rank

    @property
    def num_ranks(self) -> int:
        """Number of slices."""
        return ranks.get_size() if self._num_ranks is None else self._num_ranks

    @property
    def rank(self) -> int:
        """The slice that this object takes."""
        return ranks.get_rank() if self._rank is None else self._rank

    def divided(self, watch: Optional[Watch] = None, compare: str = "off") -> tf.data.Dataset:
        """The slices as `(element, share)`."""
        return untuned(
            self.finish(divide(self.dataset, self.num_ranks, self.rank, watch, compare))
        )

    def finish(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Applies `preprocess` to a dataset of `(element, share)`."""
        if self.preprocess is None:
            return dataset
        return preprocess_samples(dataset, self.preprocess, self.num_parallel_calls).prefetch(AHEAD)

    @property
    def element_spec(self) -> Any:
        """Specification of what iterating yields."""
        return self.divided().element_spec[0]

    def cardinality(self) -> tf.Tensor:
        """Number of batches, as of a tf.data.Dataset."""
        return self.dataset.cardinality()

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Any]:
        for element, _ in self.divided():
            yield element

    @property
    def weights(self) -> Iterator[Tuple[Any, float]]:
        """Elements and the weights of their gradients."""
        for element, share in self.divided(self._watch()):
            yield element, int(share["local"]) / max(1, int(share["global"]))

    def _watch(self) -> Watch:
        return Watch(lambda batch: check_first(batch, self.num_ranks))


def check_first(batch: int, num_ranks: int) -> None:
    """Raises ValueError for a first batch with fewer samples than ranks."""
    if batch < num_ranks:
        raise ValueError(
            "the global batch of {} samples is smaller than the number of ranks, {}; use a batch"
            " size of at least {} or fewer ranks".format(batch, num_ranks, num_ranks)
        )


def distribute(
    dataset: tf.data.Dataset,
    preprocess: Optional[Callable] = None,
    num_parallel_calls: Any = AUTOTUNE,
) -> Dataset:
    """A dataset for `fit` whose costly part runs on each rank's own samples only.

    `dataset` yields global batches of something cheap: file names, indices, bytes. The cut comes
    first, then `preprocess` per sample, with the arguments that `Dataset.map` would give it.
    """
    return Dataset(dataset, preprocess=preprocess, num_parallel_calls=num_parallel_calls)
