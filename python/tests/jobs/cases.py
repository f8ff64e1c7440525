"""What the jobs in this directory share: cases that run in one process, data, models,
references.
"""

import os
import sys
import time
import traceback
from typing import Any, Callable, List

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tarantella as tnt  # noqa: E402

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from tarantella import collectives  # noqa: E402
from tarantella.keras import is_keras3  # noqa: E402

keras = tf.keras
KERAS3 = is_keras3(keras.Sequential())
RANK, SIZE = tnt.get_rank(), tnt.get_size()
_cases: List[Callable[[], None]] = []


def case(function: Callable[[], None]) -> Callable[[], None]:
    """Registers a function as a case of the job."""
    _cases.append(function)
    return function


def run() -> None:
    """Runs the cases; the arguments of the program choose some by parts of their names."""
    chosen = [
        each
        for each in _cases
        if not sys.argv[1:] or any(part in each.__name__ for part in sys.argv[1:])
    ]
    if not chosen:
        sys.exit("no case has such a name")
    failed = []
    for each in chosen:
        begin = time.monotonic()
        # Also before the first: Keras 3 keeps the type of the first layer made for all later ones.
        keras.backend.clear_session()
        keras.backend.set_floatx("float64")
        try:
            each()
            outcome = ""
        except Exception:
            outcome = traceback.format_exc()
            # At once: the others may wait for this rank in the middle of the case.
            sys.stderr.write("rank {}: {} failed\n{}".format(RANK, each.__name__, outcome))
        if any(collectives.allgather_object(outcome)):
            failed.append(each.__name__)
        if RANK == 0 and os.environ.get("TNT_TEST_VERBOSE"):
            sys.stderr.write("{} {:.1f} s\n".format(each.__name__, time.monotonic() - begin))
    if RANK == 0:
        print("{} passed".format(len(chosen) - len(failed)))
    if failed:
        sys.exit("failed: {}".format(", ".join(failed)))


def digits(number: int = 1437, dtype: str = "float64", size: int = 16) -> Any:
    """Handwritten digits of scikit-learn, scaled up, and their labels."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    images = loaded.images[:number].astype(dtype) / 16.0
    factor = size // 8
    images = images.repeat(factor, axis=1).repeat(factor, axis=2)
    return images[..., None], loaded.target[:number].astype("int64")


def lenet(dtype: str = "float64", size: int = 16, seed: int = 1) -> Any:
    """LeNet-5 with weights that depend on `seed` only."""
    keras.backend.set_floatx(dtype)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((size, size, 1)),
            layers.Conv2D(6, 5, padding="same", activation="tanh"),
            layers.AveragePooling2D(2),
            layers.Conv2D(16, 5, padding="same", activation="tanh"),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.Dense(120, activation="tanh"),
            layers.Dense(84, activation="tanh"),
            layers.Dense(10),
        ]
    )
    return with_weights(model, seed)


def with_weights(model: Any, seed: int = 1) -> Any:
    """The model with weights drawn by NumPy: the same in every process and version."""
    generator = np.random.default_rng(seed)
    drawn = []
    for weight in model.get_weights():
        fan = max(1, int(np.prod(weight.shape[:-1])))
        drawn.append(
            weight
            if weight.ndim < 2
            else generator.normal(0, fan**-0.5, weight.shape).astype(weight.dtype)
        )
    model.set_weights(drawn)
    return model


def dataset(*arrays: Any, batch: int) -> Any:
    """A batched dataset of arrays, in their order."""
    return tf.data.Dataset.from_tensor_slices(
        tuple(arrays) if len(arrays) > 1 else arrays[0]
    ).batch(batch)


def close(mine: Any, reference: Any, relative: float, what: str = "weights") -> None:
    """Each tensor differs at most by `relative` of its largest element."""
    assert len(mine) == len(reference), (len(mine), len(reference))
    for number, (left, right) in enumerate(zip(mine, reference)):
        left, right = np.asarray(left, np.float64), np.asarray(right, np.float64)
        largest = max(np.abs(right).max(initial=0), 1e-30)
        found = np.abs(left - right).max(initial=0) / largest
        assert found <= relative, "{} {}: {:.2e} > {:.2e}".format(what, number, found, relative)


def same_bits(arrays: Any) -> None:
    """The arrays are equal on all ranks, bit by bit."""
    own = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    assert len(set(collectives.allgather_object(own))) == 1, "the bits of the ranks differ"


def raises(kind: Any, part: str, function: Callable[[], Any]) -> None:
    """The function raises an exception of a kind whose text has a part."""
    try:
        function()
    except kind as error:
        assert part in str(error), "{!r} is not in {!r}".format(part, str(error))
        return
    raise AssertionError("no {} was raised".format(kind))
