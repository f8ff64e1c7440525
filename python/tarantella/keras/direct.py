"""Train and test functions of a model, called without what TensorFlow does for any kind of call.

A call of a tf.function describes its arguments, and looks for the trace that fits them; for an
iterator that takes a third of a millisecond, in each step. The steps of an epoch share an iterator,
so what was found for it is kept.
"""

import weakref
from typing import Any, Callable, Optional

import tensorflow as tf

# Calls by which a function has made its variables and is traced without that.
CALLS_BEFORE = 2
_Function = type(tf.function(lambda: None))


class Direct:
    """A tf.function of an iterator."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._iterator: Callable[[], Any] = lambda: None
        self._calls = 0
        self._traced: Any = None

    def __call__(self, iterator: Any) -> Any:
        if self._iterator() is not iterator:
            self._iterator, self._calls, self._traced = weakref.ref(iterator), 0, None
        if self._traced is not None and not tf.config.functions_run_eagerly():
            # The iterator is its resource; to keep that would keep what it has read ahead.
            inputs = tf.nest.flatten(iterator, expand_composites=True)
            return self._traced._call_flat(inputs, self._traced.captured_inputs)
        self._calls += 1
        result = self._function(iterator)
        if self._calls == CALLS_BEFORE and not tf.config.functions_run_eagerly():
            traced = self._function.get_concrete_function(iterator)
            self._traced = traced if hasattr(traced, "_call_flat") else None
        return result


class Steps:
    """A function of Keras 3, which takes iterators of other kinds too."""

    def __init__(self, step: Callable[[Any], Any], of_keras: Callable[[Any], Any]) -> None:
        @tf.autograph.experimental.do_not_convert
        def one(iterator: Any) -> Any:
            return step(iterator.get_next())

        self._direct = Direct(tf.function(one, reduce_retracing=True))
        self._of_keras = of_keras

    def __call__(self, iterator: Any) -> Any:
        take = self._direct if isinstance(iterator, tf.data.Iterator) else self._of_keras
        return take(iterator)


def quickened(made: Any, step: Optional[Callable[[Any], Any]]) -> Any:
    """What Keras made, or a form of it that takes less time. `step` is what Keras 3 runs on an
    element; None where it is not known to run just that on each.
    """
    if isinstance(made, (Direct, Steps)):
        return made
    if isinstance(made, _Function):
        return Direct(made)
    return made if step is None else Steps(step, made)
