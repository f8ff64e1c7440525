"""What a call of fit, evaluate or predict begins with: its arguments, what the ranks compare, and a
model that is built.
"""

import contextlib
import weakref
from typing import Any, Callable, Dict, Iterator, List, Optional

import numpy as np
import tensorflow as tf

from .. import collectives, data, ranks, settings
from . import flavour, is_keras3
from .sources import Request, Source

# Loops that run for a model; more than one where a callback calls evaluate.
_depths: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()


class Call:
    """One call of fit, evaluate or predict: who was called with what."""

    def __init__(self, model: Any, procedure: str, kwargs: Dict[str, Any]) -> None:
        self.model = model
        self.procedure = procedure
        self.kwargs = dict(kwargs)
        self.keras = flavour(model)
        self.keras3 = is_keras3(model)
        self.distribute = boolean(
            "tnt_distribute_dataset", self.kwargs.pop("tnt_distribute_dataset", True)
        )
        self.micro_batch_size = positive(
            "tnt_micro_batch_size", self.kwargs.pop("tnt_micro_batch_size", None)
        )
        self.watch = data.Watch()
        self.validation_watch = data.Watch()

    def take(self, name: str, default: Any = None) -> Any:
        """Takes an argument out of those that Keras is given."""
        return self.kwargs.pop(name, default)

    def request(self, **more: Any) -> Request:
        """What a source has to know."""
        fields = dict(
            keras=self.keras,
            keras3=self.keras3,
            procedure=self.procedure,
            model=self.model,
            micro_batch_size=self.micro_batch_size,
            distribute=self.distribute,
        )
        return Request(**dict(fields, **more))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Around Keras' own loop: output on the master only, errors of the data pipeline as they
        were raised.
        """
        quiet = not (ranks.is_master_rank() or settings.get().output_on_all_devices)
        interactive = _quieten(self.keras) if quiet else None
        _depths[self.model] = _depths.get(self.model, 0) + 1
        try:
            yield
        except tf.errors.OpError as error:
            for watch in (self.watch, self.validation_watch):
                if watch.error is not None:
                    raise watch.error from None
            raise error
        except ValueError as error:
            if self.watch.first is None and str(error).startswith("Unexpected result of `"):
                # Keras 2.12 does not say why a loop had no result.
                raise ValueError(
                    "the data of {} are empty; give at least one batch".format(self.procedure)
                ) from None
            raise
        finally:
            _depths[self.model] -= 1
            if interactive:
                _logging_of(self.keras).enable_interactive_logging()

    def verbosity(self) -> None:
        """Only the master shows a progress bar."""
        if not (ranks.is_master_rank() or settings.get().output_on_all_devices):
            self.kwargs["verbose"] = 0


def in_loop(model: Any) -> bool:
    """Whether a loop of Keras runs for a model: then callbacks are what calls."""
    return _depths.get(model, 0) > 0


def _logging_of(keras: Any) -> Any:
    """The module with Keras' switch of its output; up to 2.12 the one above does not have it."""
    utils = keras.utils
    return utils if hasattr(utils, "disable_interactive_logging") else utils.io_utils


def _quieten(keras: Any) -> bool:
    utils = _logging_of(keras)
    enabled = utils.is_interactive_logging_enabled()
    utils.disable_interactive_logging()
    return bool(enabled)


def boolean(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError("{} is {!r}; it has to be True or False".format(name, value))
    return bool(value)


def positive(name: str, value: Any) -> Optional[int]:
    if value is None:
        return None
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError("{} is {!r}; it has to be a number of samples".format(name, value))
    if value < 1:
        raise ValueError("{} is {}; it has to be at least 1".format(name, value))
    return int(value)


def require_compiled(call: Call) -> None:
    model = call.model
    compiled = (
        getattr(model, "compiled", False) if call.keras3 else getattr(model, "_is_compiled", False)
    )
    if not compiled:
        kind = ValueError if call.keras3 else RuntimeError
        raise kind(
            "You must compile your model before training/testing: call model.compile(optimizer,"
            " loss) before {}()".format(call.procedure)
        )


def compare_calls(procedure: str, own: Dict[str, Any]) -> List[Dict[str, Any]]:
    """What all ranks say of their call; a difference that would part them is an error on all."""
    own = dict({"procedure": procedure}, **own)
    of_all = collectives.allgather_object(own) if ranks.get_size() > 1 else [own]
    for rank, other in enumerate(of_all):
        for name, value in of_all[0].items():
            if name in ("procedure", "must_agree") or name in of_all[0].get("must_agree", ()):
                if other.get(name) != value:
                    raise ValueError(
                        "ranks 0 and {} called {} with different {}: {} and {}; call it with the"
                        " same arguments on all ranks".format(
                            rank, procedure, name.replace("_", " "), value, other.get(name)
                        )
                    )
    return of_all


# ==== Building ====


def _example(spec: Any) -> Any:
    """Zeros of the shape of a batch of one sample; None where the shape is not fixed enough."""
    if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None or spec.dtype == tf.string:
        return None
    dimensions = [1] + [dimension for dimension in spec.shape[1:]]
    return None if None in dimensions else tf.zeros(dimensions, spec.dtype)


def is_built(model: Any) -> bool:
    """Whether a model and its layers have their weights."""
    return getattr(model, "built", True) and (not is_keras3(model) or not unbuilt_layers(model))


def build(model: Any, spec: Any, first: Optional[Callable[[], Any]] = None) -> None:
    """Builds a model that is not built, by a call on zeros of the shape of the data, or else on its
    first slice.
    """
    if is_built(model):
        return
    x = spec[0] if isinstance(spec, tuple) else spec
    example = tf.nest.map_structure(_example, x)
    if any(leaf is None for leaf in tf.nest.flatten(example)):
        if first is None:
            return
        element = first()
        example = element[0] if isinstance(element, tuple) else element
    try:
        model(example)
    except NotImplementedError:
        # Models with a train_step of their own need not have a call.
        return


def unbuilt_layers(model: Any) -> bool:
    return any(not getattr(layer, "built", True) for layer in getattr(model, "layers", []))


def prepare(call: Call, source: Optional[Source]) -> None:
    from . import model as models

    # The specification costs as much as the dataset itself: it is traced for it.
    if source is not None and not is_built(call.model):
        looked_at = source if source.preview is None else source.preview()
        build(
            call.model,
            source.element_spec(),
            lambda: next(iter(looked_at.divided(data.Watch(), "off")))[0],
        )
    models.prepare(call.model)
    if call.procedure != "fit":
        # As train_on_batch has left them; ranks never evaluate different models.
        models.average_moving_statistics(call.model)
