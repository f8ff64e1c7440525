"""The bodies of fit and evaluate, and of the `_on_batch` forms, for a model of several ranks. That
of predict is in predict.py.

Each checks the arguments, lets the ranks compare what they were called with, divides the data, and
hands the rest to the user's own class, `base`. Functions take `(model, base, kwargs)`; `kwargs`
holds all arguments by name.
"""

import contextlib
import functools
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np
import tensorflow as tf

from .. import collectives, data, log, ranks, settings
from . import callbacks as callback_lists
from . import arrays, calls, divisions, gathering, kinds, metrics, optimizers, sources
from .calls import Call
from .sources import Source


# ==== fit ====


def fit(model: Any, base: type, kwargs: Dict[str, Any]) -> Any:
    """`fit` of a tnt.Model."""
    from . import model as models

    call = Call(model, "fit", kwargs)
    calls.require_compiled(call)
    epochs = call.kwargs.get("epochs", 1)
    x, y, sample_weight = call.take("x"), call.take("y"), call.take("sample_weight")
    batch_size = calls.positive("batch_size", call.take("batch_size"))
    fraction = call.take("validation_split", 0.0)
    validation = call.take("validation_data")
    if fraction and validation is None:
        (x, y, sample_weight), validation = arrays.split((x, y, sample_weight), fraction)
    steps = calls.positive("steps_per_epoch", call.take("steps_per_epoch"))
    workers = call.kwargs.get("workers", 1)
    shuffle = call.take("shuffle", True)
    of_all = calls.compare_calls("fit", {"order": arrays.draw(x, shuffle)})
    told = [each["order"] for each in of_all]
    order_seed, drawn = arrays.order_seed(told), told[0][1]
    if not call.distribute and ranks.get_size() > 1:
        # Each rank its own order of its own data.
        order_seed = drawn = (told[0][1] if told[0][0] is None else told[0][0]) + ranks.get_rank()
    request = call.request(
        batch_size=batch_size,
        steps=steps,
        epochs=epochs,
        workers=workers,
        shuffle=shuffle,
        class_weight=call.take("class_weight"),
        order_seed=order_seed,
        drawn=drawn,
    )
    source = kinds.make(request, x, y, sample_weight)
    call.watch = data.Watch(lambda batch: sources.check_first(request, batch))
    if source.batch is not None:
        sources.check_first(request, source.batch)
    divides_validation = calls.boolean(
        "tnt_distribute_validation_dataset", call.take("tnt_distribute_validation_dataset", True)
    )
    evaluated = _validation(call, validation, batch_size, workers, divides_validation)
    given = None
    if evaluated is not None and divides_validation:
        given = evaluated.divided(call.validation_watch, "off", late=True)
    elif evaluated is not None:
        given = evaluated.undivided(data.Watch())

    listed = callback_lists.flatten(call.keras, call.take("callbacks"))
    own = dict(
        callback_lists.told(call.keras, listed),
        epochs=epochs,
        initial_epoch=call.kwargs.get("initial_epoch", 0),
        steps_per_epoch=steps,
        distributed=call.distribute,
        validates=given is not None,
        distributed_validation=divides_validation and given is not None,
        validation_freq=call.kwargs.get("validation_freq", 1),
        batch_size=source.batch,
        steps=source.steps,
    )
    own["must_agree"] = [
        "epochs",
        "initial_epoch",
        "steps_per_epoch",
        "distributed",
        "validates",
        "distributed_validation",
        "validation_freq",
    ]
    if call.distribute:
        own["must_agree"] += ["batch_size", "steps"]
    of_all = calls.compare_calls("fit", own)
    agreed = callback_lists.agree(own, of_all)
    cut = None if call.distribute else _common_steps(of_all, steps)

    calls.prepare(call, source)
    if call.distribute:
        compare = settings.get().check_data if ranks.get_size() > 1 else "off"
        call.kwargs["x"] = source.divided(call.watch, compare, late=True)
        models.expect(call.model, call.kwargs["x"].element_spec)
    else:
        log.logger().info(
            "tnt_distribute_dataset=False: each rank is fed its own data; gradients are weighted by"
            " the samples of each rank"
        )
        call.kwargs["x"] = source.undivided(call.watch, cut)
    call.kwargs["steps_per_epoch"] = steps or source.keras_steps
    if call.keras3:
        call.kwargs["shuffle"] = False
    if given is not None:
        call.kwargs["validation_data"] = given
    return _run_fit(call, base, listed, agreed, Hooks(call, source, evaluated))


def _validation(
    call: Call, validation: Any, batch_size: Optional[int], workers: int, distribute: bool
) -> Optional[Source]:
    """The data of validation; None without it."""
    micro = calls.positive(
        "tnt_validation_micro_batch_size", call.take("tnt_validation_micro_batch_size")
    )
    size = calls.positive("validation_batch_size", call.take("validation_batch_size"))
    if validation is None or (isinstance(validation, (list, tuple)) and len(validation) == 0):
        return None
    if isinstance(validation, (list, tuple)):
        if len(validation) > 3:
            raise ValueError(
                "validation_data is (x, y), (x, y, sample_weight) or a dataset, not {}"
                " things".format(len(validation))
            )
        parts = tuple(validation) + (None,) * (3 - len(validation))
    else:
        parts = (validation, None, None)
    steps = calls.positive("validation_steps", call.kwargs.get("validation_steps"))
    are_arrays = (
        not hasattr(parts[0], "element_spec")
        and not hasattr(parts[0], "on_epoch_end")
        and not hasattr(parts[0], "__next__")
    )
    if are_arrays and size is None and micro is None:
        size = batch_size
    request = call.request(
        procedure="validation",
        batch_size=size,
        steps=steps,
        micro_batch_size=micro,
        distribute=distribute,
        micro_batch_name="tnt_validation_micro_batch_size",
        workers=workers,
    )
    source = kinds.make(request, *parts)
    if not distribute:
        log.logger().info(
            "tnt_distribute_validation_dataset=False: each rank evaluates its own data"
        )
        return source
    if source.batch is not None:
        sources.check_first(request, source.batch)
    call.validation_watch = data.Watch(lambda batch: sources.check_first(request, batch))
    return source


def _common_steps(of_all: List[Dict[str, Any]], steps: Optional[int]) -> Optional[int]:
    """Steps of an epoch when each rank feeds its own data: those of the rank with the fewest."""
    known = [each["steps"] for each in of_all]
    if steps is not None:
        return None
    if None in known:
        raise ValueError(
            "rank {} does not know how many batches its data have, so the ranks cannot agree on the"
            " steps of an epoch; apply tf.data.experimental.assert_cardinality to the dataset, or"
            " pass steps_per_epoch".format(known.index(None))
        )
    fewest = min(known)
    if max(known) != fewest:
        log.logger().warning(
            "the ranks have %s batches; an epoch takes the first %d of each. Give all ranks as many"
            " batches, or pass steps_per_epoch",
            ", ".join(str(count) for count in known),
            fewest,
        )
    return fewest


def _run_fit(
    call: Call, base: type, listed: List[Any], agreed: Dict[str, Any], hooks: "Hooks"
) -> Any:
    restored = None
    if agreed["restores"] and ranks.get_size() > 1:
        restored = hooks.restored
    arrangement = callback_lists.Arrangement(call.keras, listed, agreed, hooks, restored)
    call.kwargs["callbacks"] = arrangement.list
    call.verbosity()
    try:
        with call.running(), _shared_counters(call, restored is not None):
            history = base.fit(call.model, **call.kwargs)
    finally:
        arrangement.undo()
    if (
        call.watch.first is None
        and call.kwargs.get("epochs", 1) > call.kwargs.get("initial_epoch", 0)
        and arrangement.values.training is not None
    ):
        raise ValueError("the data of fit are empty; give at least one batch")
    return history


class Hooks:
    """What the callbacks of a call do together with the model and the data: those of a fit, and
    those that are evaluated or predicted.
    """

    def __init__(
        self, call: Call, source: Optional[Source] = None, evaluated: Optional[Source] = None
    ) -> None:
        self.call = call
        self.source = source
        self.keras3 = call.keras3
        self.trained_epochs = sources.Epochs(call.keras3, source)
        self.evaluated_epochs = sources.Epochs(call.keras3, evaluated)
        self._described = source is None

    def end_steps(self, model: Any) -> None:
        """Before validation and at the end of an epoch."""
        self._describe()
        self.average_moving_statistics(model)

    def average_moving_statistics(self, model: Any) -> None:
        """Also between steps, before a checkpoint."""
        from . import model as models

        models.average_moving_statistics(model)

    def end_epoch(self, model: Any) -> None:
        """Agrees on stopping and compares the weights of the ranks."""
        from . import model as models

        self.agree_on_stop(model)
        models.check_drift(model)

    def agree_on_stop(self, model: Any) -> bool:
        """Whether any rank wants to stop; all ask together."""
        from . import model as models

        return models.stop_requested(model)

    def restored(self, model: Any) -> None:
        """The master has restored a backup: the others take its weights and counters."""
        from . import model as models

        callback_lists.restored_counters(self.call.keras3, model)
        # Keras 2 restores what the optimizer keeps when that is made, which is after this, and
        # tf_keras makes it while it restores, both on the master only.
        optimizers.build(model.optimizer, model.trainable_variables)
        models.prepare(model, broadcast=True)

    def _describe(self) -> None:
        """Tells the sizes of the batches, once per fit."""
        if self._described or not self.call.distribute or self.call.watch.first is None:
            return
        self._described = True
        watch, source = self.call.watch, self.source
        steps = self.call.kwargs.get("steps_per_epoch") or source.steps
        last = source.last
        if last is None:
            last = watch.other[max(watch.other)] if watch.other else watch.first
        log.logger().info(
            "global batch %s; %s steps per epoch, last batch %d",
            data.describe(watch.first, ranks.get_size()),
            "an unknown number of" if steps is None else steps,
            last,
        )


@contextlib.contextmanager
def _shared_counters(call: Call, restores: bool) -> Iterator[None]:
    """Keras 2 asks the state of a backup for epoch and step after all callbacks began; the others
    ask the master.
    """
    name = "_maybe_load_initial_counters_from_ckpt"
    if call.keras3 or not restores:
        yield
        return
    ask = getattr(call.model, name)

    def counters(*arguments: Any, **named: Any) -> Any:
        own = ask(*arguments, **named)
        return collectives.broadcast_object(tuple(int(value) for value in own))

    object.__setattr__(call.model, name, counters)
    try:
        yield
    finally:
        object.__delattr__(call.model, name)


# ==== evaluate ====


def evaluate(model: Any, base: type, kwargs: Dict[str, Any]) -> Any:
    """`evaluate` of a tnt.Model; the same result on all ranks."""
    if kwargs.get("_use_cached_eval_dataset"):
        return _validate(model, base, kwargs)
    call = Call(model, "evaluate", kwargs)
    calls.require_compiled(call)
    steps = calls.positive("steps", call.kwargs.get("steps"))
    request = call.request(
        batch_size=calls.positive("batch_size", call.take("batch_size")),
        steps=steps,
        workers=call.kwargs.get("workers", 1),
    )
    x = call.take("x")
    source = kinds.make(request, x, call.take("y"), call.take("sample_weight"))
    listed = callback_lists.flatten(call.keras, call.take("callbacks"))
    own = dict(
        callback_lists.told(call.keras, listed),
        steps=source.steps,
        distributed=call.distribute,
        must_agree=["distributed"] + (["steps"] if call.distribute else []),
    )
    calls.compare_calls("evaluate", own)
    # What is kept of the data must not keep the model.
    check = functools.partial(sources.check_first, request._replace(model=None))
    if source.batch is not None and call.distribute:
        check(source.batch)
    calls.prepare(call, source)
    if call.distribute:
        call.kwargs["x"], call.watch = divisions.of(
            x, source, "evaluate", check, lambda watch: source.divided(watch, "off", late=True)
        )
    else:
        log.logger().info("tnt_distribute_dataset=False: each rank evaluates its own data")
        call.watch = data.Watch(check)
        call.kwargs["x"] = source.undivided(call.watch)
    hooks = Hooks(call, None, source)
    arrangement = callback_lists.Arrangement(call.keras, listed, {}, hooks)
    call.kwargs["callbacks"] = arrangement.list
    as_dict = call.kwargs.pop("return_dict", False)
    call.verbosity()
    try:
        with call.running():
            logs = base.evaluate(model, return_dict=True, **call.kwargs)
    except BaseException:
        divisions.forget(x)
        raise
    finally:
        arrangement.undo()
    if steps is not None or getattr(model, "stop_evaluating", False):
        divisions.forget(x)
    if call.watch.first is None:
        raise ValueError("the data of evaluate are empty; give at least one batch")
    logs = _global_logs(logs, arrangement.values)
    return logs if as_dict else flatten_logs(model, logs)


def _validate(model: Any, base: type, kwargs: Dict[str, Any]) -> Any:
    """Validation inside fit, which Keras starts with the data that fit has prepared."""
    values = callback_lists.values_of(kwargs.get("callbacks"))
    logs = base.evaluate(model, **kwargs)
    return logs if values is None else _global_logs(logs, values)


def _global_logs(logs: Dict[str, Any], values: Any) -> Dict[str, Any]:
    known = values.evaluation or {}
    return {name: known.get(name, value) for name, value in logs.items()}


def flatten_logs(model: Any, logs: Dict[str, Any]) -> Any:
    """Values as a list in the order of the metrics, or the value if it is one."""
    if hasattr(model, "_flatten_metrics_in_order"):
        return model._flatten_metrics_in_order(logs)
    names = [name for name in model.metrics_names if name in logs]
    names += sorted(name for name in logs if name not in names)
    values = [logs[name] for name in names]
    return values[0] if len(values) == 1 else values


# ==== One batch ====


def _element(call: Call, class_weight: Any = None) -> Tuple[Any, Any]:
    """The slice of this rank of the arguments, and its share."""
    request = call.request(class_weight=class_weight)
    x, y, sample_weight = call.take("x"), call.take("y"), call.take("sample_weight")
    return arrays.slice_of(request, x, y, sample_weight)


def train_on_batch(model: Any, base: type, kwargs: Dict[str, Any]) -> Any:
    """`train_on_batch` of a tnt.Model; the arguments are the global batch, the values those of all
    ranks.
    """
    return _on_batch(
        model, "train_on_batch", kwargs, lambda: model.make_train_function(), "train_function"
    )


def test_on_batch(model: Any, base: type, kwargs: Dict[str, Any]) -> Any:
    """`test_on_batch` of a tnt.Model."""
    return _on_batch(
        model, "test_on_batch", kwargs, lambda: model.make_test_function(), "test_function"
    )


def _on_batch(model: Any, procedure: str, kwargs: Dict[str, Any], make: Callable, name: str) -> Any:
    call = Call(model, procedure, kwargs)
    calls.require_compiled(call)
    element, share = _element(call, call.take("class_weight"))
    _prepare_for(call, element)
    made = make()
    if not call.keras3:
        setattr(model, name, made)
    if call.keras3 or call.take("reset_metrics", True):
        model.reset_metrics()
    step = (element, share)
    with call.running():
        iterator = iter([step]) if call.keras3 else iter(tf.data.Dataset.from_tensors(step))
        logs = getattr(model, name)(iterator)
        logs = {key: metrics.plain(np.asarray(value)) for key, value in logs.items()}
        results = metrics.global_results(model)
        results.update(metrics.average_others(logs, results))
    logs = {key: results.get(key, value) for key, value in logs.items()}
    return logs if call.take("return_dict", False) else flatten_logs(model, logs)


def _prepare_for(call: Call, element: Any) -> None:
    from . import model as models

    if not getattr(call.model, "built", True) or calls.unbuilt_layers(call.model):
        spec = tf.nest.map_structure(
            lambda leaf: None if leaf is None else tf.type_spec_from_value(leaf), element
        )
        calls.build(call.model, spec, lambda: element)
    models.prepare(call.model)
    if call.procedure != "train_on_batch":
        models.average_moving_statistics(call.model)


def predict_on_batch(model: Any, base: type, kwargs: Dict[str, Any]) -> Any:
    """`predict_on_batch` of a tnt.Model: each rank takes its slice of the batch."""
    call = Call(model, "predict_on_batch", kwargs)
    element, share = _element(call)
    _prepare_for(call, element)
    x = element[0] if isinstance(element, tuple) else element
    with call.running():
        outputs = base.predict_on_batch(model, x)
    local, batch = int(share["local"]), int(share["global"])
    if local == 0:
        outputs = tf.nest.map_structure(lambda leaf: leaf[:0], outputs)
    if ranks.get_size() == 1:
        return outputs
    sizes = [[count] for count in data.sizes(batch, ranks.get_size())]
    return tf.nest.map_structure(lambda leaf: gathering.merge(leaf, sizes), outputs)
