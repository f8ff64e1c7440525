"""What happens in a step beside the gradients: the weight of this rank, exchanges, the control
line.

A step is traced once and runs many times. `Step` is what its operators share while it is traced;
the optimizer's hook finds it by `current()`. In a custom loop there is none: there the weight is
what `batch_weight` says, 1/p by default.

Order within a step, so that a thread of TensorFlow never waits while one is still to run that
another rank waits for: what repeats the step is saved before anything of it can fail; the control
line starts first; exchanges are chained in the order in which they are traced; sums of gradients
are waited for when all gradients were handed over; the control line ends last.
"""

import contextlib
import threading
from typing import Any, Dict, Iterator, List, Optional, Sequence

import numpy as np
import tensorflow as tf

from .. import collectives, errors, fusion, operators, ranks
from . import failures

_CONTROL_VALUES = 4
_CONTROL_ELEMENTS = 1 + 2 * _CONTROL_VALUES
_local = threading.local()


class Step:
    """A step that is being traced, or, with run_eagerly, is running."""

    def __init__(
        self,
        weight: Any,
        share: Optional[Dict[str, Any]] = None,
        saved: Sequence[Any] = (),
    ) -> None:
        self.weight = weight
        self.share = share
        # What repeats the step: there before anything of it can fail.
        self.saved = list(saved)
        # What sample weights are divided by to undo the weight; None where they are left alone.
        self.divisor: Any = None
        self.started: List[Any] = []
        self._chain: List[Any] = []

    def exchange(self, slot: operators.Slot, tensors: Sequence[Any]) -> List[Any]:
        """Sums over all ranks, now; for what the forward or backward pass itself needs."""
        one = tf.constant(1.0, tf.float64)
        with tf.control_dependencies(self._chain + self.started):
            tokens = slot.start(tensors, one, self._order())
        with tf.control_dependencies(tokens):
            sums = slot.finish(tensors, tokens)
        self._chain = list(sums)
        return sums

    def _order(self) -> Any:
        return (
            tf.constant(0, tf.int64)
            if self.share is None
            else tf.cast(self.share["local"], tf.int64)
        )


def current() -> Optional[Step]:
    """The step of this thread; None outside of one."""
    return getattr(_local, "step", None)


@contextlib.contextmanager
def entered(step: Step) -> Iterator[Step]:
    """`step` is the current one within the block."""
    former = current()
    _local.step = step
    try:
        yield step
    finally:
        _local.step = former


@contextlib.contextmanager
def batch_weight(weight: Any) -> Iterator[None]:
    """Gradients that are applied within the block count so much of the global batch.

    For custom loops: `weight` is the number of samples of this rank divided by those of all, which
    `tnt.data.Dataset(...).weights` yields with each batch. Without it each rank counts 1/p.
    What fails within the block since a rank was lost raises RankFailure, also in a function that
    was traced.
    """
    step = _OwnStep(tf.cast(weight, tf.float64))
    eagerly = tf.executing_eagerly()
    try:
        with failures.in_own_loop(), entered(step):
            if eagerly:
                of_traces.renew()
            yield
    finally:
        if eagerly:
            of_traces.renew()


class _OwnStep(Step):
    """A step of a custom loop."""


def weight() -> Any:
    """The weight of this rank's gradients."""
    step = current()
    if tf.executing_eagerly():
        return _weight_now() if step is None else step.weight
    if step is None or (isinstance(step, _OwnStep) and _is_value(step.weight)):
        return of_traces.read()
    return step.weight


def _weight_now() -> Any:
    """The weight in a custom loop outside of functions."""
    step = current()
    if isinstance(step, _OwnStep) and _is_value(step.weight):
        return step.weight
    return tf.constant(1.0 / ranks.get_size(), tf.float64)


def _is_value(weight: Any) -> bool:
    return hasattr(weight, "numpy")


class _OfTraces:
    """The weight in a custom loop as a variable. A function that is traced once may be called with
    any weight around it, and by another number of ranks.
    """

    def __init__(self) -> None:
        self._variable: Any = None

    def read(self) -> Any:
        """Its value when the function runs; traced."""
        if self._variable is None:
            with tf.init_scope(), tf.device("CPU:0"):
                self._variable = tf.Variable(_weight_now(), trainable=False)
        return self._variable.read_value()

    def renew(self) -> None:
        """Takes the weight as it is now."""
        if self._variable is not None:
            self._variable.assign(_weight_now())


of_traces = _OfTraces()


class Control:
    """The control line of a model: step, global batch and fingerprint have to agree; wishes to stop
    travel.
    """

    def __init__(self) -> None:
        layout = fusion.Layout(
            (fusion.Tensor("control line", (_CONTROL_ELEMENTS,), "int64"),), op="max"
        )
        self.slot = operators.Slot(layout)
        with tf.init_scope():
            self._steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="tarantella_step")

    def start(self, share: Dict[str, Any]) -> Any:
        """Sends the line of a step."""
        step = self._steps.read_value()
        values = [step, tf.cast(share["global"], tf.int64)]
        fingerprint = share.get("fingerprint")
        if fingerprint is not None:
            values += tf.unstack(tf.cast(tf.reshape(fingerprint, [2]), tf.int64))
        return operators.load().tarantella_control_start(
            values=tf.stack(values), slot=self.slot.number
        )

    def finish(self, token: Any, after: Sequence[Any]) -> Any:
        """Receives the lines of all ranks, once `after` is computed."""
        with tf.control_dependencies(list(after)):
            advance = operators.load().tarantella_control_finish(token=token, slot=self.slot.number)
        advance.set_shape([])
        return self._steps.assign_add(advance, read_value=True)

    def steps(self) -> Any:
        """Steps whose lines were exchanged."""
        return self._steps.read_value()

    def set_steps(self, steps: int) -> None:
        """Takes the count of a rank that is ahead."""
        self._steps.assign(steps)

    def wish(self, stop: bool) -> None:
        """Whether this rank wants to stop; told by the next line."""
        operators.functions().tarantella_tf_wish(self.slot.number, 1 if stop else 0)

    def take_stop(self) -> bool:
        """Whether a line held a wish to stop; forgets it."""
        return bool(operators.functions().tarantella_tf_stop(self.slot.number))

    def difference(self) -> Optional[Exception]:
        """The error for lines that differed in the last step, which all ranks ask for together."""
        which = operators.functions().tarantella_tf_differs(self.slot.number)
        if which < 0:
            return None
        own = np.zeros(_CONTROL_VALUES, np.int64)
        operators.functions().tarantella_tf_last(self.slot.number, own.ctypes.data)
        return describe_difference(collectives.allgather(own))


def describe_difference(lines: np.ndarray) -> Optional[Exception]:
    """What differs first between the control lines of the ranks, as an error; None if nothing
    does.
    """
    for at in range(_CONTROL_VALUES):
        column = lines[:, at]
        others = np.flatnonzero(column != column[0])
        if others.size == 0:
            continue
        other = int(others[0])
        step = int(lines[0, 0]) + 1
        if at == 0:
            return errors.LayoutMismatch(
                "ranks 0 and {} are at steps {} and {}; every rank has to call fit and"
                " train_on_batch as often".format(other, step, int(lines[other, 0]) + 1)
            )
        if at == 1:
            return errors.DataMismatch(
                "ranks 0 and {} have global batches of {} and {} samples at step {}; give all ranks"
                " the same dataset, or pass tnt_distribute_dataset=False".format(
                    other, int(column[0]), int(column[other]), step
                )
            )
        return errors.DataMismatch(
            "ranks 0 and {} were fed different batches at step {}; give shuffle and list_files a"
            " seed, set deterministic=True, or pass tnt_distribute_dataset=False".format(
                other, step
            )
        )
    return None
