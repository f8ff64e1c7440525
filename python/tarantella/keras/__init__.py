"""The frontend for Keras: 2 (TensorFlow 2.10 to 2.15), tf_keras, and 3 on TensorFlow.

Which Keras it is, is decided for each model by its class, see `flavour`.
"""

import os
import random
import sys
from typing import Any

from .. import collectives, log, ranks, settings


def start() -> None:
    """What the import of the package does with TensorFlow: seed and devices. Initialises no
    context.
    """
    import tensorflow as tf

    _check_version(tf.__version__)
    _grow_memory(tf)
    seed = settings.get().seed
    if seed == "random":
        seed = collectives.broadcast_object(random.SystemRandom().randrange(1 << 32))
        log.logger().info("TNT_SEED=random: the seed of this job is %d", seed)
    if seed != "none":
        tf.random.set_seed(seed)


def _grow_memory(tf: Any) -> None:
    """Has TensorFlow take memory of a GPU as it needs it: others may use the same one."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "").strip() == "-1":
        return
    for device in tf.config.list_physical_devices("GPU"):
        try:
            tf.config.experimental.set_memory_growth(device, True)
        except RuntimeError:
            log.logger().warning(
                "TensorFlow was in use before the import of tarantella, so it takes all memory of"
                " its GPU; import tarantella first"
            )
            return


def _check_version(text: str) -> None:
    version = tuple(int(part) for part in text.split(".")[:2])
    if not (2, 10) <= version <= (2, 21):
        log.logger().warning("TensorFlow %s has not been tried; versions 2.10 to 2.21 have", text)


def flavour(model: Any) -> Any:
    """The Keras module of a model's class, or of an optimizer's: `keras` (2 or 3) or `tf_keras`."""
    for base in type(model).__mro__:
        root = base.__module__.split(".")[0]
        if root in ("keras", "tf_keras") and root in sys.modules:
            return sys.modules[root]
    raise TypeError(
        "{} is no model of Keras; give a keras.Model, Sequential, or an object of a class derived"
        " from them".format(type(model).__name__)
    )


def is_keras3(model: Any) -> bool:
    """Whether a model's class, or an optimizer's, is from Keras 3."""
    return str(getattr(flavour(model), "__version__", "2")).startswith("3.")


def __getattr__(name: str) -> Any:
    if name in ("callbacks", "metrics", "model", "optimizers"):
        import importlib

        return importlib.import_module("." + name, __name__)
    raise AttributeError("module {!r} has no attribute {!r}".format(__name__, name))
