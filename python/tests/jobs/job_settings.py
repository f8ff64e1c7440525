"""What variables of the environment change in training: which gradients share a bucket, what is
compared and when, how sparse gradients travel.
"""

import contextlib
import os
from typing import Any, Iterator

from cases import RANK, SIZE, case, close, dataset, keras, np, raises, run, same_bits, tf, tnt
from cases import with_weights

from tarantella import settings
from tarantella.keras import optimizers


@contextlib.contextmanager
def variables(**texts: str) -> Iterator[None]:
    """As if the job had been started with these variables."""
    former = settings.get()
    settings._settings = settings.Settings(dict(os.environ, **texts))
    try:
        yield
    finally:
        settings._settings = former


# ==== Buckets ====

# Elements in the order in which gradients come, which is the reverse one; thresholds in floats, and
# which of them share a bucket: the cases of gaspi-collectives/src/fusion/layout.rs.
ELEMENTS = (94, 17, 2, 81)
BUCKETS = (
    (2, [[0], [1], [2], [3]]),
    (10, [[0], [1], [2, 3]]),
    (100, [[0, 1], [2, 3]]),
    (112, [[0, 1, 2], [3]]),
    (200, [[0, 1, 2, 3]]),
    (0, [[0], [1], [2], [3]]),
)


class Sums(keras.layers.Layer):
    """Has weights of these numbers of elements."""

    def build(self, input_shape: Any) -> None:
        """Makes them, the last one first."""
        self.parts = [
            self.add_weight(shape=(number,), initializer="ones", name="part{}".format(number))
            for number in reversed(ELEMENTS)
        ]
        super().build(input_shape)

    def call(self, inputs: Any) -> Any:
        """The sum of all weights for each input."""
        return inputs * tf.add_n([tf.reduce_mean(tf.convert_to_tensor(one)) for one in self.parts])


def reducer(model: Any) -> Any:
    """What sums the gradients of a model."""
    return optimizers.reducer_of(optimizers.hooked(model.optimizer))


@case
def thresholds_make_the_buckets_of_the_library() -> None:
    if SIZE == 1:
        return
    keras.backend.set_floatx("float32")
    generator = np.random.default_rng(3)
    x, y = (generator.normal(size=(32, 1)).astype("float32") for _ in range(2))

    def trained(wrap: Any) -> Any:
        model = wrap(keras.Sequential([keras.Input((1,)), Sums()]))
        model.compile(keras.optimizers.SGD(0.01), "mse")
        model.fit(dataset(x, y, batch=8), epochs=1, verbose=0)
        return model

    plain = trained(lambda model: model)
    for floats, expected in BUCKETS:
        with variables(TNT_FUSION_THRESHOLD=str(floats * 4 / 1024)):
            model = trained(tnt.Model)
        (slot,) = reducer(model)._slots.values()
        assert slot.layout.threshold == floats * 4, slot.layout
        counts = [[slot.layout.tensors[at].count for at in bucket][::-1] for bucket in slot.buckets]
        assert counts == [[ELEMENTS[at] for at in bucket] for bucket in expected], (floats, counts)
        close(model.get_weights(), plain.get_weights(), 1e-5)
        same_bits(model.get_weights())


@case
def threshold_without_a_variable_is_32_kilobytes() -> None:
    if SIZE == 1:
        return
    keras.backend.set_floatx("float32")
    texts = {name: text for name, text in os.environ.items() if name != "TNT_FUSION_THRESHOLD"}
    assert settings.Settings(texts).fusion_threshold_bytes == 32 * 1024
    model = tnt.Model(small())
    model.compile("sgd", "mse")
    model.fit(numbers(), epochs=1, verbose=0)
    (slot,) = reducer(model)._slots.values()
    assert slot.layout.threshold == settings.get().fusion_threshold_bytes
    assert len(slot.buckets) == 1, slot.buckets


# ==== What is compared ====


def small() -> Any:
    """A small model."""
    return with_weights(
        keras.Sequential(
            [keras.Input((8,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
        )
    )


def numbers(odd: int = -1) -> Any:
    """Six batches of eight samples; that of one number differs on the last rank."""
    generator = np.random.default_rng(3)
    x, y = generator.normal(size=(48, 8)), generator.normal(size=(48, 1))
    if odd >= 0 and RANK == SIZE - 1:
        x[8 * odd : 8 * odd + 8] += 1.0
    return dataset(x, y, batch=8)


class Steps(keras.callbacks.Callback):
    """Counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A step."""
        self.number += 1


def fit(data: Any, *listed: Any, epochs: int = 2) -> Any:
    """A model after two epochs."""
    keras.backend.set_floatx("float64")
    model = tnt.Model(small())
    model.compile(keras.optimizers.SGD(0.05), "mse")
    model.fit(data, epochs=epochs, verbose=0, callbacks=list(listed))
    return model


@case
def data_are_compared_when_the_variable_says() -> None:
    if SIZE == 1:
        return
    differ = "ranks 0 and {} were fed different batches at step ".format(SIZE - 1)
    for when, odd, step in (("step", 0, 1), ("step", 3, 4), ("epoch", 0, 1)):
        with variables(TNT_CHECK_DATA=when):
            raises(tnt.DataMismatch, differ + str(step), lambda odd=odd: fit(numbers(odd)))
    # A batch within an epoch, and any batch without the check.
    for when, odd in (("epoch", 3), ("off", 0), ("off", 3)):
        steps = Steps()
        with variables(TNT_CHECK_DATA=when):
            same_bits(fit(numbers(odd), steps).get_weights())
        assert steps.number == 12, (when, odd, steps.number)


class Drift(keras.callbacks.Callback):
    """Changes a weight on the last rank."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """That rank goes its own way."""
        if RANK == SIZE - 1:
            weight = self.model.trainable_weights[0]
            weight.assign(weight + 1.0)


@case
def weights_are_compared_unless_the_variable_says_off() -> None:
    if SIZE == 1:
        return
    for text in ("on", "true"):
        with variables(TNT_CHECK_WEIGHTS=text):
            raises(tnt.DriftError, "drifted apart", lambda: fit(numbers(), Drift(), epochs=1))
    for text in ("off", "false"):
        steps = Steps()
        with variables(TNT_CHECK_WEIGHTS=text):
            fit(numbers(), Drift(), steps)
        assert steps.number == 12, steps.number


# ==== Sparse gradients ====


def words() -> Any:
    """A model with an embedding whose gradient is sparse."""
    layers = keras.layers
    return with_weights(
        keras.Sequential(
            [
                keras.Input((3,), dtype="int32"),
                layers.Embedding(50, 4),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )
    )


@case
def sparse_gradients_are_gathered_unless_the_variable_says_dense() -> None:
    if SIZE == 1:
        return
    generator = np.random.default_rng(4)
    x = generator.integers(0, 50, (40, 3)).astype("int32")
    y = generator.normal(size=(40, 1))
    keras.backend.set_floatx("float64")

    def trained(wrap: Any) -> Any:
        model = wrap(words())
        # What a gradient does not name, this optimizer leaves alone in either form.
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.fit(dataset(x, y, batch=8), epochs=2, verbose=0)
        return model

    plain = trained(lambda model: model)
    for text, dense in (("false", 2), ("true", 3)):
        with variables(TNT_SPARSE_AS_DENSE=text):
            model = trained(tnt.Model)
        (slot,) = reducer(model)._slots.values()
        assert len(slot.layout.tensors) == dense, slot.layout
        assert (reducer(model)._gather_slot is None) == (text == "true")
        close(model.get_weights(), plain.get_weights(), 1e-12)
        same_bits(model.get_weights())


if __name__ == "__main__":
    run()
