"""Types of gradients, and sparse ones, on all ranks against plain Keras."""

from typing import Any, Callable

import cases
from cases import (
    KERAS3,
    SIZE,
    case,
    dataset,
    digits,
    keras,
    lenet,
    np,
    raises,
    same_bits,
    tnt,
    with_weights,
)
from job_training import against_plain, numbers, perceptron, sgd


def _embedding(words: int) -> Callable[[], Any]:
    def build() -> Any:
        layers = keras.layers
        return with_weights(
            keras.Sequential(
                [
                    keras.Input((5,), dtype="int32"),
                    layers.Embedding(words, 16),
                    layers.Flatten(),
                    layers.Dense(1),
                ]
            )
        )

    return build


@case
def sparse_gradients() -> None:
    generator = np.random.default_rng(11)
    targets = generator.normal(size=(50, 1))
    for words in (50, 10000):
        x = generator.integers(0, words, (50, 5)).astype("int32")
        for optimizer in (sgd, lambda: keras.optimizers.Adam(0.01)):
            against_plain(
                _embedding(words),
                optimizer,
                lambda: dataset(x, targets, batch=16),
                loss="mse",
                relative=1e-9,
            )


@case
def half_types() -> None:
    for dtype in ("float16", "bfloat16"):
        keras.backend.set_floatx("float32")
        layers = keras.layers
        model = with_weights(
            keras.Sequential(
                [
                    keras.Input((8,)),
                    layers.Dense(6, activation="tanh", dtype=dtype),
                    layers.Dense(3, dtype=dtype),
                ]
            )
        )
        before = [np.asarray(weight, "float32") for weight in model.get_weights()]
        model = tnt.Model(model)
        model.compile(keras.optimizers.SGD(0.05), "mse")
        model.fit(numbers()(), epochs=2, verbose=0)
        after = model.get_weights()
        same_bits(after)
        assert any((np.asarray(new, "float32") != old).any() for new, old in zip(after, before))


@case
def compression() -> None:
    from tarantella import settings

    if SIZE == 1:
        return
    for kind, relative in (("bf16", 2e-2), ("f16", 2e-3)):
        settings.get().compression = kind
        try:
            model = against_plain(
                perceptron,
                lambda: keras.optimizers.SGD(0.05),
                numbers(),
                loss="mse",
                relative=relative,
                dtype="float32",
            )
            same_bits(model.get_weights())
            # It has to be felt: what f32 sends has no such error.
            raises(
                AssertionError,
                "",
                lambda: against_plain(
                    perceptron,
                    lambda: keras.optimizers.SGD(0.05),
                    numbers(),
                    loss="mse",
                    relative=1e-7,
                    dtype="float32",
                ),
            )
        finally:
            settings.get().compression = "none"


@case
def single_precision() -> None:
    against_plain(
        lambda: lenet("float32"),
        lambda: keras.optimizers.SGD(0.01),
        lambda: dataset(*digits(400, "float32"), batch=64),
        epochs=1,
        relative=5e-5,
        dtype="float32",
    )


@case
def mixed_precision() -> None:
    keras.backend.set_floatx("float32")
    set_policy = keras.mixed_precision.set_global_policy
    try:
        set_policy("mixed_float16")
        against_plain(
            perceptron,
            lambda: keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.05)),
            numbers(),
            loss="mse",
            relative=2e-2,
            dtype="float32",
        )
    finally:
        # None: what set_floatx says, as before.
        set_policy("float32" if KERAS3 else None)


if __name__ == "__main__":
    cases.run()
