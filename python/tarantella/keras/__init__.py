"""The frontend for Keras: 2 (TensorFlow 2.10 to 2.15), tf_keras, and 3 on TensorFlow.

Which Keras it is, is decided for each model by its class, see `flavour`.
"""

import os
import random
import sys
from typing import Any, List

from .. import collectives, log, ranks, settings


def start() -> None:
    """What the import of the package does with TensorFlow: seed and devices. Initialises no
    context.
    """
    import tensorflow as tf

    _check_version(tf.__version__)
    _choose_devices(tf)
    seed = settings.get().seed
    if seed == "random":
        seed = collectives.broadcast_object(random.SystemRandom().randrange(1 << 32))
        log.logger().info("TNT_SEED=random: the seed of this job is %d", seed)
    if seed != "none":
        tf.random.set_seed(seed)


def _choose_devices(tf: Any) -> None:
    """Gives each rank of a host a GPU of its own, and has TensorFlow take memory of it as it needs
    it: others may use the same one.

    The command `tarantella` has shared them out by CUDA_VISIBLE_DEVICES; where a launcher or the
    user has set that, it stays so. Else TensorFlow is told, which has looked at the GPUs by then,
    and the variable is set for processes that this rank starts.
    """
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None and listed.strip() == "-1":
        return
    devices = tf.config.list_physical_devices("GPU")
    numbers = list(range(len(devices)))
    try:
        if devices and listed is None and ranks.get_local_size() > 1:
            numbers = _share(numbers)
            tf.config.set_visible_devices([devices[number] for number in numbers], "GPU")
            text = ",".join(str(number) for number in numbers) or "-1"
            os.environ["CUDA_VISIBLE_DEVICES"] = text
        for number in numbers:
            tf.config.experimental.set_memory_growth(devices[number], True)
    except RuntimeError:
        log.logger().warning(
            "TensorFlow was in use before the import of tarantella, so it takes all memory of"
            " its GPU, and ranks of one host the same one; import tarantella first"
        )


def _share(numbers: List[int]) -> List[int]:
    """This rank's GPU of those of its host; none where there are more ranks than GPUs."""
    most = settings.get().gpus_per_node
    numbers = numbers if most is None else numbers[:most]
    if ranks.get_local_size() > len(numbers):
        if numbers:
            log.logger().warning(
                "%d ranks on this host are more than the %d GPUs that they may use: its ranks use"
                " CPUs; start fewer, or set CUDA_VISIBLE_DEVICES for each",
                ranks.get_local_size(),
                len(numbers),
            )
        return []
    return [numbers[ranks.get_local_rank()]]


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
