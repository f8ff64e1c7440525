"""Types of gradients, and sparse ones, on all ranks against plain Keras; what the operators are
registered with.
"""

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
from tarantella import operators
from tensorflow.python.framework import kernels, op_def_registry


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


@case
def every_argument_of_every_kernel_is_in_host_memory() -> None:
    """As TensorFlow's registry has them. On a GPU an argument that is not would be an address of
    the device, which operators cannot read. The registry lists kernels of devices that the machine
    does not have.
    """
    operators.load()
    found = [each for each in kernels.get_all_registered_kernels().kernel if _is_ours(each.op)]
    names = {each.op for each in found}
    assert names >= {"TarantellaStart", "TarantellaFinish", "TarantellaGather"}, names
    for name in names:
        about = op_def_registry.get(name)
        arguments = sorted(each.name for each in [*about.input_arg, *about.output_arg])
        types = [list(each.allowed_values.list.type) for each in about.attr if each.name == "T"]
        # An operator without the attribute, or for any types, has one kernel for each device.
        wanted = sorted(types[0]) if types and types[0] else [None]
        for device in ("CPU", "GPU"):
            mine = [each for each in found if (each.op, each.device_type) == (name, device)]
            served = [kind for each in mine for kind in _types(each)]
            assert sorted(served) == wanted, (name, device, served)
            for each in mine:
                assert sorted(each.host_memory_arg) == arguments, (name, device, each)


def _is_ours(name: str) -> bool:
    return name.startswith("Tarantella")


def _types(kernel: Any) -> Any:
    """The types that a kernel serves, none for one without a type."""
    kinds = [
        kind
        for each in kernel.constraint
        if each.name == "T"
        for kind in each.allowed_values.list.type
    ]
    return kinds or [None]


if __name__ == "__main__":
    cases.run()
