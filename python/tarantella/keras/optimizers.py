"""The hook by which an optimizer of Keras applies the sum of all ranks' gradients in place of its
own.

It comes before clipping, weight decay, averages and accumulation, so these see the gradient of the
global batch. Which hook it is depends on what the optimizer has, not on the version of Keras:
`apply` (Keras 3; of a LossScaleOptimizer the outer one), `aggregate_gradients` (Keras 2; the inner
one), `gradient_aggregator` (the legacy optimizers, and all of Keras 2.10).

Sparse gradients stay so: the rows of all ranks are gathered in the order of the ranks, which is the
order in which one rank would have them. Made dense they would give other numbers: optimizers leave
rows alone that a sparse gradient does not name, and Keras 3 takes rows that it names twice one by
one.
"""

import weakref
from typing import Any, Dict, List, Optional, Sequence, Tuple

import tensorflow as tf

from .. import collectives, errors, fusion, operators, ranks, settings
from . import classes, failures, regroup, step


class _Rows(operators.Slot):
    """The slot of gathers: how many elements each rank has, a number for each."""

    def __init__(self) -> None:
        super().__init__(self._of_ranks())

    @staticmethod
    def _of_ranks() -> fusion.Layout:
        shape = (ranks.get_size(),)
        return fusion.Layout((fusion.Tensor("rows of a sparse gradient", shape, "int64"),))

    def renew(self) -> None:
        """Makes the buffer for the ranks that the job has now."""
        self.layout = self._of_ranks()
        super().renew()


class Reducer:
    """Sums the gradients of one optimizer. There is a fused buffer for each list of variables."""

    def __init__(self) -> None:
        self._slots: Dict[Tuple[int, ...], operators.Slot] = {}
        self._variables: List[Any] = []
        self._gather_slot: Optional[_Rows] = None
        with tf.init_scope():
            self._steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="tarantella_step")

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> List[Any]:
        """The sums of all ranks' gradients, each rank's by its weight; None stays None."""
        with failures.in_own_loop():
            return self._reduce(gradients, variables)

    def _reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> List[Any]:
        reduced = list(gradients)
        dense, sparse = [], []
        for at, (gradient, variable) in enumerate(zip(gradients, variables)):
            if gradient is None:
                continue
            if isinstance(gradient, tf.IndexedSlices) and not settings.get().sparse_as_dense:
                sparse.append(at)
                continue
            reduced[at] = tf.convert_to_tensor(gradient)
            if reduced[at].shape.num_elements() != 0:
                dense.append(at)
        weight = step.weight()
        order = self._steps.read_value()
        current = step.current()
        waits_for: List[Any] = [] if current is None else list(current.started)
        saved: List[Any] = [] if current is None else current.saved
        tokens: List[Any] = []
        if dense:
            slot = self._slot(
                [variables[at] for at in dense], [reduced[at].dtype.name for at in dense]
            )
            own = [reduced[at] for at in dense]
            # Where a death is known this fails at once.
            with tf.control_dependencies([tf.group(*saved)] if saved else []):
                tokens = slot.start(own, weight, order)
            waits_for += tokens
        for at in sparse:
            with tf.control_dependencies(waits_for):
                reduced[at] = self._gather(reduced[at], weight)
            waits_for.append(reduced[at].values)
        ends: List[Any] = [reduced[at].values for at in sparse]
        if dense:
            # One operator between: else each wait would have an edge from each bucket.
            with tf.control_dependencies([tf.group(*waits_for)]):
                sums = slot.finish(own, tokens)
            for at, total in zip(dense, sums):
                reduced[at] = total
            ends += [sums[bucket[0]] for bucket in slot.buckets]
        with tf.control_dependencies(ends):
            self._steps.assign_add(1, read_value=False)
            if regroup.may_lose_ranks():
                # No variable changes before all sums are there.
                reduced = [_identity(gradient) for gradient in reduced]
        return reduced

    def steps(self) -> Any:
        """Steps whose sums have all arrived."""
        return self._steps.read_value()

    def set_steps(self, steps: int) -> None:
        """Takes the count of a rank that is ahead."""
        self._steps.assign(steps)

    def _slot(self, variables: Sequence[Any], dtypes: Sequence[str]) -> operators.Slot:
        key = tuple(id(variable) for variable in variables)
        if key not in self._slots:
            tensors = tuple(
                fusion.Tensor(name_of(variable), tuple(variable.shape), dtype)
                for variable, dtype in zip(variables, dtypes)
            )
            chosen = settings.get()
            layout = fusion.Layout(
                tensors,
                threshold=chosen.fusion_threshold_bytes,
                reverse=True,
                wire=_WIRES[chosen.compression],
            )
            compare_layouts(layout)
            self._slots[key] = operators.Slot(layout)
            # The key holds addresses, so the variables have to live as long.
            self._variables += list(variables)
        return self._slots[key]

    def _gathers(self) -> _Rows:
        """The slot of all gathers of this optimizer."""
        if self._gather_slot is None:
            self._gather_slot = _Rows()
        return self._gather_slot

    def _gather(self, gradient: tf.IndexedSlices, weight: Any) -> tf.IndexedSlices:
        """The rows of all ranks, in the order of the ranks."""
        library = operators.load()
        slot = self._gathers()
        own = tf.shape(gradient.values, out_type=tf.int64)[0]
        values = tf.where(
            weight > 0,
            gradient.values * tf.cast(weight, gradient.values.dtype),
            tf.zeros_like(gradient.values),
        )
        rows = library.tarantella_gather(rows=values, own=own, slot=slot.number)
        rows.set_shape([None] + list(gradient.values.shape[1:]))
        with tf.control_dependencies([rows]):
            indices = library.tarantella_gather(
                rows=tf.cast(gradient.indices, tf.int64), own=own, slot=slot.number
            )
        indices.set_shape([None])
        with tf.control_dependencies([indices]):
            return tf.IndexedSlices(
                tf.identity(rows), tf.cast(indices, gradient.indices.dtype), gradient.dense_shape
            )


def _identity(gradient: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.identity(gradient.values), tf.identity(gradient.indices), gradient.dense_shape
        )
    return None if gradient is None else tf.identity(gradient)


_WIRES = {"none": None, "bf16": "bfloat16", "f16": "float16"}


def name_of(variable: Any) -> str:
    """The name of a variable in messages."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", "a variable"))


def compare_layouts(layout: fusion.Layout) -> None:
    """An error on all ranks, which names the first difference, unless their layouts are equal."""
    layouts = collectives.allgather_object(layout)
    for rank, other in enumerate(layouts):
        if other == layouts[0]:
            continue
        for mine, theirs in zip(layouts[0].tensors, other.tensors):
            if mine != theirs:
                raise errors.LayoutMismatch(
                    "the gradients of ranks 0 and {} differ: {} {} {} and {} {} {}; all ranks have "
                    "to train the same model".format(rank, *mine, *theirs)
                )
        if len(layouts[0].tensors) != len(other.tensors):
            raise errors.LayoutMismatch(
                "ranks 0 and {} have {} and {} gradients; all ranks have to train the same "
                "model".format(rank, len(layouts[0].tensors), len(other.tensors))
            )
        raise errors.LayoutMismatch(
            "ranks 0 and {} have fusion thresholds of {} and {} bytes and compression {} and {};"
            " set TNT_FUSION_THRESHOLD and TNT_COMPRESSION alike on all ranks".format(
                rank, layouts[0].threshold, other.threshold, layouts[0].wire, other.wire
            )
        )


_reducers: "weakref.WeakKeyDictionary[Any, Reducer]" = weakref.WeakKeyDictionary()


def reducer_of(optimizer: Any) -> Reducer:
    """The reducer of an optimizer, made on first use."""
    if optimizer not in _reducers:
        _reducers[optimizer] = Reducer()
    return _reducers[optimizer]


def _alone() -> bool:
    return ranks.size_of_job() == 1


class _Apply:
    """For optimizers that have `apply` (Keras 3)."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Applies the sum of all ranks' gradients."""
        if _alone() or len(grads) == 0:
            return super().apply(grads, trainable_variables)  # type: ignore[misc]
        variables = (
            self._trainable_variables if trainable_variables is None else list(trainable_variables)
        )
        summed = reducer_of(self).reduce(list(grads), variables)
        apply = super().apply  # type: ignore[misc]
        return apply(summed, variables if trainable_variables is not None else None)


class _AggregateGradients:
    """For optimizers that have `aggregate_gradients` (Keras 2)."""

    def aggregate_gradients(self, grads_and_vars: Any) -> Any:
        """The variables with the sums of all ranks' gradients."""
        pairs = list(grads_and_vars)
        if _alone() or not pairs:
            return super().aggregate_gradients(pairs)  # type: ignore[misc]
        summed = reducer_of(self).reduce([pair[0] for pair in pairs], [pair[1] for pair in pairs])
        return list(zip(summed, [pair[1] for pair in pairs]))


class _Aggregator:
    """The `gradient_aggregator` of a legacy optimizer."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)

    def __call__(self, grads_and_vars: Any) -> Any:
        pairs = list(grads_and_vars)
        optimizer = self._optimizer()
        if _alone() or not pairs or optimizer is None:
            return pairs
        summed = reducer_of(optimizer).reduce(
            [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        )
        return list(zip(summed, [pair[1] for pair in pairs]))


def hooked(optimizer: Any) -> Any:
    """The optimizer that has the hook: of two that are nested, one."""
    if not callable(getattr(optimizer, "apply", None)) and hasattr(optimizer, "inner_optimizer"):
        return hooked(optimizer.inner_optimizer)
    return optimizer


def build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Makes the variables of an optimizer that has none yet."""
    if callable(getattr(optimizer, "build", None)):
        if not getattr(optimizer, "built", False) and not getattr(optimizer, "_built", False):
            optimizer.build(variables)
    elif hasattr(optimizer, "_create_all_weights"):
        optimizer._create_all_weights(variables)


def hook(optimizer: Any) -> Any:
    """Has the optimizer sum gradients over all ranks; in place, twice is once."""
    if callable(getattr(optimizer, "apply", None)):
        classes.extend(optimizer, _Apply)
    elif hasattr(optimizer, "inner_optimizer"):
        hook(optimizer.inner_optimizer)
    elif callable(getattr(optimizer, "aggregate_gradients", None)):
        classes.extend(optimizer, _AggregateGradients)
    elif hasattr(optimizer, "gradient_aggregator"):
        if not isinstance(optimizer.gradient_aggregator, _Aggregator):
            optimizer.gradient_aggregator = _Aggregator(optimizer)
    else:
        raise TypeError(
            "{} is no optimizer of Keras: it has neither apply, nor aggregate_gradients, nor "
            "gradient_aggregator; derive it from keras.optimizers.Optimizer".format(
                type(optimizer).__name__
            )
        )
    return optimizer
