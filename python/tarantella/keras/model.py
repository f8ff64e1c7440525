"""`tnt.Model`: a model of Keras that trains on all ranks.

The model is changed in place: its class becomes one that puts the methods here before its own. What
`fit`, `evaluate` and `predict` do with data and callbacks is in loops.py and predict.py, the step
itself in train.py; here are what has to be equal on all ranks before it, and how failures become
exceptions.

For the other modules: `prepare`, `expect`, `stop_requested`, `average_moving_statistics`,
`check_drift`, `base_of`, and `restored`, within which model and optimizer have their own classes,
as for saving.
"""

import enum
import inspect
from typing import Any, Dict, Optional

import numpy as np
import tensorflow as tf

from .. import collectives, log, ranks, settings
from . import (
    batch_norm,
    classes,
    direct,
    failures,
    flavour,
    is_keras3,
    losses,
    optimizers,
    regroup,
    saving,
    train,
    weights,
)
from .state import State, alone, state_of
from .step import Step, entered

# Samples of a rank's batch below which statistics of batch normalisation are warned of.
LEAST_SAMPLES = 16


class ParallelStrategy(enum.Enum):
    """How work is divided among ranks."""

    DATA = "data"
    PIPELINING = "pipelining"
    ALL = "all"


def base_of(model: Any) -> type:
    """The class of a model as its author wrote it."""
    return classes.former(model)


def restored(model: Any) -> Any:
    """Within this context model and optimizer have the classes of plain Keras."""
    return classes.restored(model, getattr(model, "optimizer", None))


# ==== What has to be equal before a step ====


def prepare(model: Any, x: Any = None, broadcast: bool = False) -> None:
    """Compares the models of all ranks and gives them the weights of rank 0, if that is due or
    asked for.

    `x` is an input of a few samples by which a model is built that is not yet.
    """
    state = state_of(model)
    state.dirty = state.dirty or broadcast
    if not _built(model):
        if x is None:
            raise ValueError(
                "the model has no weights yet; call it on a batch, or model.build(input_shape),"
                " before it is used on several ranks"
            )
        model(x)
    if alone():
        state.dirty = False
        return
    if regroup.may_lose_ranks() and state.place is None:
        # Here and not in a step: that is traced for the first time only once.
        state.place = regroup.Place()
    optimizers_due = _optimizer_is_built(model)
    weights.compare(model)
    due = collectives.allgather(np.array([state.dirty, optimizers_due], np.uint8))
    if not due[:, 0].any():
        return
    variables = (
        weights.synchronised(model)
        if due[:, 1].all()
        else (list(model.trainable_weights) + list(model.non_trainable_weights))
    )
    weights.broadcast(variables + weights.seeds(model))
    _differ_by_rank(model, state)
    state.dirty = False


def expect(model: Any, spec: Any) -> None:
    """Before a fit where ranks may be lost: data of another structure need variables of their own,
    which only the first trace of a function may make.
    """
    if regroup.may_lose_ranks() and not state_of(model).saved.knows(spec):
        _forget_functions(model)


def _built(model: Any) -> bool:
    return bool(getattr(model, "built", True)) and (
        bool(model.weights)
        or not getattr(model, "layers", None)
        or all(layer.built for layer in model.layers)
    )


def _optimizer_is_built(model: Any) -> bool:
    optimizer = getattr(model, "optimizer", None)
    return optimizer is not None and bool(weights.optimizer_variables(optimizer))


def _differ_by_rank(model: Any, state: State) -> None:
    """Random layers draw by seed + rank."""
    rank = ranks.get_rank()
    for seed in weights.seeds(model):
        value = weights.array_of(seed).copy()
        value.reshape(-1)[0] += np.asarray(rank, value.dtype)
        seed.assign(value)
    if state.seeded:
        return
    state.seeded = True
    if rank > 0:
        for number, layer in enumerate(weights.layers_of(model)):
            generator = getattr(layer, "_random_generator", None)
            if (
                generator is not None
                and hasattr(generator, "_seed")
                and getattr(layer, "_seed_generators", None) is None
            ):
                generator._seed = (generator._seed or 7919 * (number + 1)) + rank
    _forget_functions(model)


def average_moving_statistics(model: Any) -> None:
    """Averages moving statistics over the ranks, weighted by the samples seen since it was last
    done.
    """
    if alone():
        return
    state = state_of(model)
    common = batch_norm.synchronised_variables(model) if state.sync_batch_norm else []
    variables = [
        variable
        for variable in weights.moving_statistics(model)
        if all(variable is not other for other in common)
    ]
    if not variables or state.samples is None:
        return
    samples = int(state.samples.numpy())
    _warn_of_few_samples(model, state, samples)
    weights.average(variables, float(samples))
    state.samples.assign(0)


def _warn_of_few_samples(model: Any, state: State, samples: int) -> None:
    """Statistics of few samples are poor; said once."""
    steps = int(state.control.steps().numpy()) if state.control is not None else 0
    steps, state.steps_averaged = steps - state.steps_averaged, steps
    if state.warned_of_few_samples or steps <= 0 or not batch_norm.layers(model):
        return
    if samples < LEAST_SAMPLES * steps:
        state.warned_of_few_samples = True
        log.logger().warning(
            "BatchNormalization takes its statistics from the samples of each rank alone, about %d;"
            " that is below %d: take a larger batch or fewer ranks, or tnt.Model(model,"
            " sync_batch_norm=True)",
            samples // steps,
            LEAST_SAMPLES,
        )


def check_drift(model: Any) -> None:
    """DriftError on all ranks if their weights differ."""
    if not alone() and settings.get().check_weights:
        weights.check_drift(model)


def stop_requested(model: Any) -> bool:
    """Whether any rank wants to stop. All ranks ask together, behind the steps of an epoch and at
    its end.
    """
    state = state_of(model)
    wish = state.own_wish
    if not alone():
        wish = bool(collectives.allreduce(np.int64(wish), "max"))
    if wish:
        state.agreed_stop = True
    return state.agreed_stop


# ==== The methods that a model gets ====


def _split(data: Any) -> Any:
    """The element and the share of a rank; no share if the dataset is not one of ours."""
    if (
        isinstance(data, tuple)
        and len(data) == 2
        and isinstance(data[1], dict)
        and {"local", "global"} <= set(data[1])
    ):
        return data
    return data, None


class Distributed(saving.Saving):
    """The methods that come before those of the model's own class."""

    def train_step(self, data: Any) -> Any:
        """One step on this rank's part of the global batch."""
        element, share = _split(data)
        base = super().train_step  # type: ignore[misc]
        if alone():
            with entered(Step(tf.constant(1.0, tf.float64), share)):
                return base(element)
        return train.train(self, base, element, share)

    def test_step(self, data: Any) -> Any:
        """One evaluation step on this rank's part."""
        element, share = _split(data)
        base = super().test_step  # type: ignore[misc]
        if share is None or alone():
            with entered(Step(tf.constant(1.0, tf.float64), share)):
                return base(element)
        return train.test(self, base, element, share)

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """The loss, with the data losses of reduction `sum` scaled so that the weighted sum is
        exact.
        """
        return losses.compute(
            self, super().compute_loss, args, kwargs, state_of(self).weights_total
        )  # type: ignore[misc]

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        """Keras' compile; the optimizer sums its gradients over all ranks from now on."""
        if kwargs.get("jit_compile") not in (None, False, "auto"):
            log.logger().warning(
                "jit_compile=True is not possible with the operators that sum gradients; it is"
                " taken as False"
            )
        if "jit_compile" in kwargs or _takes(super().compile, "jit_compile"):  # type: ignore[misc]
            kwargs["jit_compile"] = False
        result = super().compile(*args, **kwargs)  # type: ignore[misc]
        adopt(self)
        return result

    def set_weights(self, *args: Any, **kwargs: Any) -> Any:
        """Keras' set_weights; the values of rank 0 count."""
        result = super().set_weights(*args, **kwargs)  # type: ignore[misc]
        state_of(self).dirty = True
        return result

    def make_train_function(self, *args: Any, **kwargs: Any) -> Any:
        """Keras' train_function; where ranks may be lost, one that goes on without them."""
        function = super().make_train_function(*args, **kwargs)  # type: ignore[misc]
        function = self.train_function if function is None else function
        if not isinstance(function, regroup.Mending):
            function = direct.quickened(function, _step_of(self, "train"))
            self.train_function = function
        if not regroup.may_lose_ranks():
            return function
        if not isinstance(function, regroup.Mending):
            if _steps_per_execution(self) != 1:
                raise ValueError(
                    "TNT_ON_FAILURE=continue needs steps_per_execution=1; leave it out of compile"
                )
            function = regroup.Mending(
                self, function, lambda error: failures.translate(error, state_of(self).control)
            )
            self.train_function = function
        return function

    def make_test_function(self, *args: Any, **kwargs: Any) -> Any:
        """Keras' test_function."""
        function = super().make_test_function(*args, **kwargs)  # type: ignore[misc]
        function = self.test_function if function is None else function
        self.test_function = direct.quickened(function, _step_of(self, "test"))
        return self.test_function

    @property
    def stop_training(self) -> bool:
        """Within fit, whether the ranks have agreed to stop; what is set here is this rank's
        wish.
        """
        state = state_of(self)
        if state.in_fit and not alone():
            if state.control is not None and state.control.take_stop():
                state.agreed_stop = True
            return state.agreed_stop
        return state.own_wish

    @stop_training.setter
    def stop_training(self, value: bool) -> None:
        state = state_of(self)
        state.own_wish = bool(value)
        if not value:
            state.agreed_stop = False
            if state.control is not None:
                state.control.take_stop()
        if state.control is not None:
            state.control.wish(state.own_wish)

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Keras' fit on all ranks; see docs/training.md for the arguments that begin with tnt_."""
        return _run(self, "fit", args, kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Keras' evaluate on all ranks; all get the result."""
        return _run(self, "evaluate", args, kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Keras' predict on all ranks; all get the result."""
        return _run(self, "predict", args, kwargs)

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Keras' train_on_batch; the arguments are the global batch."""
        return _run(self, "train_on_batch", args, kwargs)

    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Keras' test_on_batch; the arguments are the global batch."""
        return _run(self, "test_on_batch", args, kwargs)

    def predict_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Keras' predict_on_batch; the argument is the global batch."""
        return _run(self, "predict_on_batch", args, kwargs)


def _steps_per_execution(model: Any) -> int:
    steps = getattr(model, "steps_per_execution", None)
    steps = getattr(model, "_steps_per_execution", 1) if steps is None else steps
    return int(steps.numpy()) if hasattr(steps, "numpy") else int(steps or 1)


def _step_of(model: Any, kind: str) -> Any:
    """What the train or test function of Keras 3 runs on each element; None where it may do more,
    and for Keras 2.
    """
    make = getattr(base_of(model), "make_{}_function".format(kind))
    made_by_keras = make.__module__.partition(".")[0] == "keras"
    if not is_keras3(model) or model.run_eagerly or not made_by_keras:
        return None
    return getattr(model, kind + "_step") if _steps_per_execution(model) == 1 else None


def _takes(function: Any, name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


# Arguments that Keras does not have, by procedure.
_OWN_ARGUMENTS = {
    "fit": (
        "tnt_micro_batch_size",
        "tnt_validation_micro_batch_size",
        "tnt_distribute_dataset",
        "tnt_distribute_validation_dataset",
    ),
    "evaluate": ("tnt_micro_batch_size", "tnt_distribute_dataset"),
    "predict": ("tnt_micro_batch_size", "tnt_distribute_dataset", "tnt_gather"),
}


def _named(function: Any, args: Any, kwargs: Dict[str, Any]) -> Dict[str, Any]:
    """Positional arguments by their names, which differ between versions of Keras.

    Unknown ones are refused here: later some ranks would, and others wait for them.
    """
    parameters = inspect.signature(function).parameters.values()
    names = [
        parameter.name
        for parameter in parameters
        if parameter.name not in ("self", "args", "kwargs")
    ]
    own = _OWN_ARGUMENTS.get(function.__name__, ())
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
    for name in kwargs:
        if name not in names and name not in own and (name.startswith("tnt_") or not takes_all):
            raise TypeError(
                "{}() has no argument {}; besides those of Keras it takes {}".format(
                    function.__name__, name, ", ".join(own) or "none"
                )
            )
    if len(args) > len(names):
        raise TypeError(
            "{}() takes {} arguments, and got {}".format(function.__name__, len(names), len(args))
        )
    named = dict(zip(names, args))
    for name in kwargs:
        if name in named:
            raise TypeError("{}() got two values for {}".format(function.__name__, name))
    named.update(kwargs)
    return named


def _run(model: Any, name: str, args: Any, kwargs: Dict[str, Any]) -> Any:
    from . import loops, predict

    base = base_of(model)
    state = state_of(model)
    named = _named(getattr(base, name), args, kwargs)
    fitting = name == "fit"
    state.in_fit += fitting
    try:
        with failures.translated(lambda: state.control):
            return getattr(predict if name == "predict" else loops, name)(model, base, named)
    finally:
        state.in_fit -= fitting


# ==== Making a model a distributed one ====


def adopt(model: Any) -> None:
    """Hooks the optimizer of a compiled model."""
    state_of(model).dirty = True
    # Those of the optimizer and of the metrics that it has now are found in the next step.
    state_of(model).counters = []
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return
    optimizers.hook(optimizer)
    if getattr(model, "jit_compile", None):
        model.jit_compile = False
    _forget_functions(model)


def _forget_functions(model: Any) -> None:
    """Functions that were traced before are traced anew."""
    for name in ("train_function", "test_function", "predict_function"):
        if getattr(model, name, None) is not None:
            setattr(model, name, None)
    if hasattr(model, "train_tf_function"):
        model.train_tf_function = None


def _wrap(
    model: Any,
    parallel_strategy: Any = ParallelStrategy.DATA,
    num_pipeline_stages: int = 1,
    sync_batch_norm: bool = False,
) -> Any:
    if parallel_strategy is not ParallelStrategy.DATA:
        raise NotImplementedError(
            "parallel_strategy={} is not built; use ParallelStrategy.DATA".format(parallel_strategy)
        )
    if num_pipeline_stages != 1:
        raise NotImplementedError(
            "num_pipeline_stages={} is not built; leave it at 1".format(num_pipeline_stages)
        )
    _check_keras(model)
    if not isinstance(model, Distributed):
        wish = bool(model.__dict__.pop("stop_training", False))
        classes.extend(model, Distributed)
        state_of(model).own_wish = wish
        adopt(model)
    if sync_batch_norm:
        batch_norm.synchronise(model)
        state_of(model).sync_batch_norm = True
        _forget_functions(model)
    return model


def _check_keras(model: Any) -> None:
    keras = flavour(model)
    bases = [base.__name__ for base in type(model).__mro__]
    if "Model" not in bases:
        raise TypeError(
            "{} is a {} and no model; give a keras.Model or Sequential".format(
                model, type(model).__name__
            )
        )
    if is_keras3(model) and keras.backend.backend() != "tensorflow":
        raise ValueError(
            "KERAS_BACKEND is {}; this package trains models of the backend tensorflow only: set "
            "KERAS_BACKEND=tensorflow".format(keras.backend.backend())
        )


class _ModelType(type):
    """`Model(...)` returns the model it is given; `isinstance(model, Model)` tells whether it
    was.
    """

    def __call__(
        cls,
        model: Any,
        parallel_strategy: Any = ParallelStrategy.DATA,
        num_pipeline_stages: int = 1,
        sync_batch_norm: bool = False,
    ) -> Any:
        return _wrap(model, parallel_strategy, num_pipeline_stages, sync_batch_norm)

    def __instancecheck__(cls, thing: Any) -> bool:
        return isinstance(thing, Distributed)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, Distributed)


class Model(metaclass=_ModelType):
    """Makes a Keras model train on all ranks, in place, and returns it.

    Keyword arguments: `parallel_strategy` (DATA), `num_pipeline_stages` (1), and `sync_batch_norm`:
    batch normalisation takes mean and variance over the global batch.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        raise TypeError(
            "derive {} from keras.Model, and give its object to tnt.Model".format(cls.__name__)
        )


def Sequential(layers: Any = None, name: Optional[str] = None) -> Any:
    """A keras.Sequential that trains on all ranks."""
    return Model(tf.keras.Sequential(layers, name=name))
