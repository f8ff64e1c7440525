"""A step of training or evaluation on the part of a batch that this rank takes."""

import contextlib
from typing import Any, Dict, Iterator, List, Optional, Sequence

import numpy as np
import tensorflow as tf

from .. import ranks
from . import batch_norm, losses, optimizers, regroup, weights
from .state import State, state_of
from .step import Control, Step, entered


def train(model: Any, base: Any, element: Any, share: Optional[Dict[str, Any]]) -> Any:
    state = state_of(model)
    if share is not None and "whole" in share:
        return _train_late(model, state, base, element, share)
    return _train_part(model, state, base, element, share)


def _train_late(model: Any, state: State, base: Any, element: Any, share: Dict[str, Any]) -> Any:
    """A step on a whole batch, in a job that may lose ranks."""
    if state.control is None:
        state.control = Control()
    if state.attempted is None:
        with tf.init_scope():
            state.attempted = tf.Variable(
                0, dtype=tf.int64, trainable=False, name="tarantella_attempted"
            )
            state.sums_before = tf.Variable(
                0, dtype=tf.int64, trainable=False, name="tarantella_sums_before"
            )
    reducer = optimizers.reducer_of(optimizers.hooked(model.optimizer))
    saved = [
        state.attempted.assign(state.control.steps() + 1, read_value=False),
        state.sums_before.assign(reducer.steps(), read_value=False),
    ]
    saved += state.saved.save((element, share))
    if not state.counters:
        with tf.init_scope():
            optimizers.build(model.optimizer, model.trainable_variables)
        # What changes although the sums of a step do not arrive.
        state.counters = [variable for metric in model.metrics for variable in metric.variables]
        state.counters += [
            variable
            for variable in weights.optimizer_variables(model.optimizer)
            if int(np.prod(tuple(variable.shape))) == 1
        ]
    if state.counters:
        saved += state.saved_counters.save(
            [tf.convert_to_tensor(variable) for variable in state.counters]
        )
    part, share = state.place.cut(element, share)
    return _train_part(model, state, base, part, share, saved)


def _train_part(
    model: Any,
    state: State,
    base: Any,
    element: Any,
    share: Optional[Dict[str, Any]],
    saved: Sequence[Any] = (),
) -> Any:
    if share is None:
        with entered(Step(tf.constant(1.0 / ranks.get_size(), tf.float64))):
            return base(element)
    if state.control is None:
        state.control = Control()
        state.control.wish(state.own_wish)
    _count_samples(model, state, share)
    step = Step(None, share, [each for each in saved if each is not None])
    with tf.control_dependencies(step.saved):
        token = state.control.start(share)
    step.started.append(token)
    with entered(step):
        step.weight = losses.weight_by_samples(step, share, state.weights_total)
        step.divisor = step.weight
        with _stand_in(model, share):
            logs = base(element)
        flat = [value for value in tf.nest.flatten(logs) if tf.is_tensor(value)]
        if regroup.may_lose_ranks():
            # The line ends only when every variable has changed.
            flat += [tf.convert_to_tensor(variable) for variable in model.trainable_weights]
        done = state.control.finish(token, flat)
    with tf.control_dependencies([done]):
        return tf.nest.map_structure(
            lambda value: tf.identity(value) if tf.is_tensor(value) else value, logs
        )


def test(model: Any, base: Any, element: Any, share: Dict[str, Any]) -> Any:
    state = state_of(model)
    if "whole" in share:
        element, share = state.place.cut(element, share)
    step = Step(tf.constant(1.0, tf.float64), share)
    with entered(step):
        # Ranks that evaluate their own data have different numbers of steps.
        if "own" not in share:
            step.divisor = losses.weight_by_samples(step, share, state.weights_total)
        with _stand_in(model, share):
            return base(element)


def _count_samples(model: Any, state: State, share: Dict[str, Any]) -> None:
    if not weights.moving_statistics(model):
        return
    if state.samples is None:
        with tf.init_scope():
            state.samples = tf.Variable(
                0, dtype=tf.int64, trainable=False, name="tarantella_samples"
            )
    state.samples.assign_add(tf.cast(share["local"], tf.int64))


@contextlib.contextmanager
def _stand_in(model: Any, share: Dict[str, Any]) -> Iterator[None]:
    """A rank without samples runs the first one in their place; its states are put back
    afterwards.
    """
    variables = _restorable(model)
    local = tf.cast(share["local"], tf.int64)
    former = [tf.identity(tf.convert_to_tensor(variable)) for variable in variables]
    yield
    # Metrics of compile exist only once the first step was traced.
    added = [
        variable
        for variable in _restorable(model)
        if all(variable is not known for known in variables)
    ]
    former += [tf.zeros_like(tf.convert_to_tensor(variable)) for variable in added]

    def put_back() -> Any:
        for variable, value in zip(variables + added, former):
            variable.assign(value)
        return tf.constant(0)

    tf.cond(tf.equal(local, 0), put_back, lambda: tf.constant(0))


def _restorable(model: Any) -> List[Any]:
    found = [variable for metric in model.metrics for variable in metric.variables]
    common = batch_norm.synchronised_variables(model) if state_of(model).sync_batch_norm else []
    return found + [
        variable
        for variable in model.non_trainable_weights
        if all(variable is not other for other in common)
    ]
