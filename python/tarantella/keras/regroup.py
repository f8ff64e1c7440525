"""Going on without ranks that were lost: `tnt.regroup()`, and TNT_ON_FAILURE=continue within fit.

Within fit a step that fails because a rank was lost is mended inside Keras' loop, so callbacks
notice nothing. For that, when ranks may be lost, (1) datasets yield whole batches, and the step
cuts them by the ranks that there are; (2) a step first saves its batch, its metrics and the
optimizer's counters, before its control line starts; (3) no weight changes before all sums of the
step have arrived, and the step ends only after all have changed, so a rank has either completed a
step or, but for what was saved, changed nothing. Steps that save nothing raise RankFailure: those
of `train_on_batch`, and of data that each rank feeds itself.

The ranks that are left make a new group. Those that are a step behind take weights and optimizer
from one that has completed it. A rank that was in the step after that one runs it again, also where
that is a step of another model: ranks count the steps of all models.

Not covered: a rank that is lost between steps, in validation, or while saving ends the job as
usual; the reported training metrics of the epoch lack the samples of the ranks that were lost.
"""

import collections
import weakref
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

import numpy as np
import tensorflow as tf

from .. import collectives, data, errors, log, operators, ranks, settings
from . import metrics, step

_ATTEMPTS = 100
# How often the ranks have made a new group.
_regrouped = 0


def may_lose_ranks() -> bool:
    """Whether this job goes on when a rank is lost."""
    return settings.get().on_failure == "continue" and ranks.size_of_job() > 1


# What takes the new ranks when they have changed.
_followers: "weakref.WeakSet[Any]" = weakref.WeakSet()


def follow(follower: Any) -> None:
    """Calls `update` of it after each regroup, until `unfollow` or for as long as it lives."""
    _followers.add(follower)


def unfollow(follower: Any) -> None:
    """Takes back `follow`."""
    _followers.discard(follower)


def regroup() -> None:
    """Makes a group of the ranks that live, after a RankFailure; all of them call it.

    get_rank and get_size follow. What the ranks hold is left as it is: a loop of one's own
    broadcasts its variables afterwards, from a rank that has completed the last step.
    """
    global _regrouped
    before = ranks.get_size()
    operators.drop_all()
    # From the end: scripts may have made groups of which others know nothing.
    number = collectives.last_group() - _regrouped
    for _ in range(_ATTEMPTS):
        alive = ranks.living()
        if len(alive) < settings.get().min_ranks:
            raise errors.RankFailure(
                None,
                None,
                "{} of {} ranks are left, fewer than TNT_MIN_RANKS={}".format(
                    len(alive), before, settings.get().min_ranks
                ),
            )
        try:
            group = collectives.make_group(alive, number)
        except (errors.RankFailure, errors.LibraryError) as error:
            # Another rank was lost meanwhile, or one does not know of all losses yet.
            last: Exception = error
            continue
        _regrouped += 1
        ranks.adopt(alive, group)
        collectives.forget_groups()
        operators.renew_all()
        for follower in list(_followers):
            follower.update()
        step.of_traces.renew()
        log.logger().warning("%d of %d ranks are left, and go on", ranks.get_size(), before)
        return
    raise errors.RankFailure(
        None, None, "the ranks that are left do not agree on who they are: {}".format(last)
    )


# ==== Within a step ====


class Place:
    """Rank and number of ranks as variables, which a graph reads anew in each step. `regroup`
    brings those of all models up to date.
    """

    def __init__(self) -> None:
        with tf.init_scope():
            self._rank = tf.Variable(ranks.get_rank(), dtype=tf.int64, trainable=False)
            self._size = tf.Variable(ranks.get_size(), dtype=tf.int64, trainable=False)
        follow(self)

    def update(self) -> None:
        """Takes the numbers as they are now."""
        self._rank.assign(ranks.get_rank())
        self._size.assign(ranks.get_size())

    def cut(self, element: Any, share: Dict[str, Any]) -> Tuple[Any, Dict[str, Any]]:
        """The slice of this rank of a whole batch."""
        batch = tf.cast(share["whole"], tf.int64)
        begin, local = data.bounds(batch, self._size.read_value(), self._rank.read_value())
        begin = tf.where(local > 0, begin, tf.zeros_like(begin))
        count = tf.maximum(local, tf.minimum(tf.ones_like(batch), batch))
        part = tf.nest.map_structure(lambda leaf: data._take(leaf, begin, count), element)
        share = {key: value for key, value in share.items() if key != "whole"}
        return part, dict(share, local=local)


class Kept:
    """Tensors of one structure in variables, whatever their shapes."""

    def __init__(self, specs: Any, flat: List[Any]) -> None:
        self.specs = specs
        self.shapes = [leaf.shape for leaf in flat]
        with tf.init_scope():
            self.variables = [
                tf.Variable(
                    (
                        tf.zeros([0], leaf.dtype)
                        if leaf.dtype != tf.string
                        else tf.constant([], tf.string)
                    ),
                    shape=tf.TensorShape(None),
                    validate_shape=False,
                    trainable=False,
                )
                for leaf in flat
            ]

    def holds(self, specs: Any) -> bool:
        """Whether tensors of these specifications can be kept here."""
        try:
            tf.nest.assert_same_structure(self.specs, specs, expand_composites=True)
        except (TypeError, ValueError):
            return False
        return _dtypes(self.specs) == _dtypes(specs)

    def keep(self, flat: List[Any]) -> List[Any]:
        """Keeps tensors; traced into a step. What does so, None where it is done."""
        self.shapes = [_common(known, leaf.shape) for known, leaf in zip(self.shapes, flat)]
        return [
            variable.assign(leaf, read_value=False) for variable, leaf in zip(self.variables, flat)
        ]

    def read(self) -> Any:
        """The structure with the tensors that were kept last."""
        flat = [
            tf.ensure_shape(variable.read_value(), shape)
            for variable, shape in zip(self.variables, self.shapes)
        ]
        return tf.nest.pack_sequence_as(self.specs, flat, expand_composites=True)


class Saved:
    """Tensors of any structures, of which those that were saved last count."""

    def __init__(self) -> None:
        self._kept: List[Kept] = []
        self._last: Any = None

    def save(self, structure: Any) -> List[Any]:
        """Keeps the tensors of a structure; traced into a step. What does so, as in `keep`."""
        specs = tf.nest.map_structure(tf.type_spec_from_value, structure)
        flat = tf.nest.flatten(structure, expand_composites=True)
        if self._last is None:
            with tf.init_scope():
                self._last = tf.Variable(0, dtype=tf.int64, trainable=False)
        number = self._number_of(specs)
        if number == len(self._kept):
            self._kept.append(Kept(specs, flat))
        return self._kept[number].keep(flat) + [self._last.assign(number, read_value=False)]

    def knows(self, specs: Any) -> bool:
        """Whether something like that was saved before, so no variable has to be made for it."""
        return self._number_of(specs) < len(self._kept)

    def _number_of(self, specs: Any) -> int:
        fitting = (number for number, kept in enumerate(self._kept) if kept.holds(specs))
        return next(fitting, len(self._kept))

    def last(self) -> Kept:
        """What was saved last."""
        return self._kept[int(self._last.numpy())]


def _dtypes(specs: Any) -> List[Any]:
    return [getattr(leaf, "dtype", None) for leaf in tf.nest.flatten(specs, expand_composites=True)]


def _common(left: tf.TensorShape, right: tf.TensorShape) -> tf.TensorShape:
    if left.rank is None or right.rank is None or left.rank != right.rank:
        return tf.TensorShape(None)
    return tf.TensorShape([mine if mine == theirs else None for mine, theirs in zip(left, right)])


# ==== Around a step ====


class _Steps:
    """The steps of all models that save what they need: how many this rank has begun, and whose the
    last two are.
    """

    def __init__(self) -> None:
        self.begun = 0
        self.last: Deque["Mending"] = collections.deque(maxlen=2)

    def begin(self, whose: "Mending") -> None:
        """One more."""
        self.begun += 1
        self.last.append(whose)

    def ahead(self) -> bool:
        """Whether a rank is in the step before that of this one; all ranks ask together."""
        return self.begun > int(collectives.allgather(np.array([self.begun], np.int64)).min())


_steps = _Steps()


class Mending:
    """A model's train_function that goes on when a rank is lost."""

    def __init__(
        self, model: Any, function: Callable[[Any], Any], translate: Callable[[Any], Any]
    ) -> None:
        self._model = model
        self._function = function
        self._translate = translate

    def __call__(self, iterator: Any) -> Any:
        saves = _saves(iterator)
        if saves:
            _steps.begin(self)
        try:
            return self._function(iterator)
        except tf.errors.OpError as error:
            if not saves:
                raise
            return self._mend(error)

    def _mend(self, error: Any) -> Any:
        from .state import state_of

        while True:
            failure = self._translate(error)
            if not isinstance(failure, errors.RankFailure):
                raise error
            log.logger().warning("%s; going on without it", failure)
            regroup()
            state = state_of(self._model)
            before = _steps.last[0] if _steps.ahead() else self
            _restore(state)
            if before is not self:
                # This rank has completed the step of another model in which others are.
                before._synchronise(state_of(before._model))
            else:
                attempted, newest = self._synchronise(state)
                if attempted == newest:
                    return metrics.results(self._model)
            try:
                return self._repeat(state)
            except tf.errors.OpError as again:
                error = again

    def _synchronise(self, state: Any) -> Tuple[int, int]:
        """Gives all ranks the state after the last step that any has completed: its number, and
        that of the attempted.
        """
        from . import optimizers, weights

        reducer = optimizers.reducer_of(optimizers.hooked(self._model.optimizer))
        attempted, sums = int(state.attempted.numpy()), int(reducer.steps().numpy())
        # An optimizer may be newer than its model, so it has a count of its own.
        completed = attempted if sums > int(state.sums_before.numpy()) else attempted - 1
        of_all = collectives.allgather(np.array([completed, sums], np.int64))
        source = int(of_all[:, 0].argmax())
        newest, sums = (int(number) for number in of_all[source])
        weights.broadcast(weights.synchronised(self._model), root=source)
        reducer.set_steps(sums)
        state.control.set_steps(newest)
        return attempted, newest

    def _repeat(self, state: Any) -> Any:
        kept, model = state.saved.last(), self._model

        def again() -> Any:
            return model.train_step(kept.read())

        # Traced each time: the batch may have another structure, and ranks are lost rarely.
        return (again if model.run_eagerly else tf.function(again))()


def _restore(state: Any) -> None:
    """Gives the counters back that a step has saved."""
    if state.counters:
        for variable, value in zip(state.counters, state.saved_counters.last().read()):
            variable.assign(value)


def _saves(iterator: Any) -> bool:
    """Whether steps on what an iterator yields save their batch: those that cut whole ones."""
    spec = getattr(iterator, "element_spec", None)
    return isinstance(spec, tuple) and isinstance(spec[-1], dict) and "whole" in spec[-1]
