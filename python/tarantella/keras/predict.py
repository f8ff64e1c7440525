"""The body of predict for a model of several ranks."""

import functools
from typing import Any, Dict, Optional

import tensorflow as tf

from .. import data, log, ranks
from . import callbacks as callback_lists
from . import calls, divisions, gathering, kinds, sources
from .calls import Call
from .loops import Hooks

_no_convert = tf.autograph.experimental.do_not_convert


def predict(model: Any, base: type, kwargs: Dict[str, Any]) -> Any:
    """`predict` of a tnt.Model: whole batches are dealt to the ranks, and gathered in order.

    With `tnt_micro_batch_size` batches are m x p samples, of which each rank takes m.
    """
    gather = kwargs.get("tnt_gather", "all")
    if gather not in ("all", "master", "none"):
        raise ValueError("tnt_gather is {!r}; use all, master or none".format(gather))
    call = Call(
        model, "predict", {name: value for name, value in kwargs.items() if name != "tnt_gather"}
    )
    steps = calls.positive("steps", call.take("steps"))
    batch_size = calls.positive("batch_size", call.take("batch_size"))
    request = call.request(
        batch_size=batch_size, steps=steps, workers=call.kwargs.get("workers", 1)
    )
    x = call.take("x")
    source = kinds.make(request, x)
    calls.compare_calls(
        "predict",
        {
            "distributed": call.distribute,
            "tnt_gather": gather,
            "must_agree": ["distributed", "tnt_gather"],
        },
    )
    calls.prepare(call, source)
    sliced = call.micro_batch_size is not None and call.distribute
    is_dataset = isinstance(x, (tf.data.Dataset, data.Dataset))
    begins = _begins(call, source.steps, steps) if is_dataset else 0
    part = None
    if is_dataset and (sliced or not call.distribute):
        call.kwargs["steps"] = steps
    elif steps is not None and not (is_dataset and steps == source.steps):
        source.dataset = source.dataset.take(steps)
        part = _part(source.steps, steps) if is_dataset else None
    if not call.distribute:
        dataset = _elements(source.undivided(call.watch))
    elif sliced:
        check = functools.partial(sources.check_first, request._replace(model=None))
        dataset, call.watch = divisions.of(
            x, source, "slices", check, lambda watch: _elements(source.divided(watch, "off"))
        )
    else:
        dataset, call.watch = divisions.of(
            x, source, "deals", None, lambda watch: _elements(source.dealt(watch))
        )
    has_none = part == 0 or int(dataset.cardinality()) == 0
    if part is not None and not has_none:
        # Keras begins once what it is not to take all of; of this it does not know the length.
        dataset, call.kwargs["steps"] = dataset.filter(_always), part
        begun = 1
    else:
        begun = 0 if has_none else begins
    try:
        outputs = _run(call, base, None if has_none else dataset, Hooks(call, None, source))
    except BaseException:
        divisions.forget(x)
        raise
    for _ in range(begins - begun):
        iter(dataset)
    if call.kwargs.get("steps") is not None or getattr(model, "stop_predicting", False):
        divisions.forget(x)
    if outputs is None and ranks.get_size() == 1:
        raise ValueError("the data of predict are empty; give at least one batch")
    if not call.distribute:
        return outputs
    return gathering.gathered(call, outputs, sliced, gather)


def _elements(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """What Keras is given of `(element, share)`."""
    return dataset.map(_no_convert(lambda part, share: sources.as_element(part)))


@_no_convert
def _always(*element: Any) -> bool:
    return True


def _begins(call: Call, length: Optional[int], steps: Optional[int]) -> int:
    """How often plain Keras makes an iterator of a dataset of so many batches; None: of a length
    that is not known. The ranks do so as often, since each iterator of a shuffled dataset has
    another order.
    """
    if not call.keras3:
        # Twice before the first batch, unless a part of it is to be taken.
        return 2 if steps is None or steps == length else 1
    version = tuple(int(number) for number in call.keras.__version__.split(".")[:2])
    if length is None or version < (3, 7):
        return 1
    # Once more behind the last batch.
    together = call.model.steps_per_execution
    taken = length if steps is None else -(-steps // together) * together
    return 2 if taken >= length else 1


def _part(length: Optional[int], steps: int) -> int:
    """How many of so many steps are this rank's, as far as there are batches for them."""
    if length is not None and steps > length:
        log.logger().warning(
            "the data of predict have %d batches, fewer than steps=%d: these are all that is"
            " predicted",
            length,
            steps,
        )
        steps = length
    return len(range(ranks.get_rank(), steps, ranks.get_size()))


def _run(call: Call, base: type, dataset: Optional[tf.data.Dataset], hooks: Hooks) -> Any:
    """This rank's outputs; None if it had no batch, of whose begin and end callbacks are told
    too. Of no dataset it is known that it has none.
    """
    listed = callback_lists.flatten(call.keras, call.take("callbacks"))
    arrangement = callback_lists.Arrangement(call.keras, listed, {}, hooks)
    call.kwargs["callbacks"] = arrangement.list
    call.verbosity()
    try:
        if dataset is None:
            arrangement.tell(call.model, "on_predict_begin")
        else:
            with call.running():
                return base.predict(call.model, dataset, **call.kwargs)
        arrangement.tell(call.model, "on_predict_end")
    except (ValueError, UnboundLocalError):
        if call.watch.first is not None or dataset is None:
            raise
        # Keras found only after the begin that there is no batch, and may have told of the end.
        if not arrangement.values.predicted:
            arrangement.tell(call.model, "on_predict_end")
    finally:
        arrangement.undo()
    return None
