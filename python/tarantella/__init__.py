"""Data-parallel training of Keras models over GASPI.

    import tarantella as tnt
    model = tnt.Model(model)

The import joins the job that the launcher describes; without a launcher there is one rank. It
brings TensorFlow in where that is installed, unless TNT_FRONTEND is none. docs/training.md tells
the rest.
"""

import importlib
import importlib.util
from typing import Any, Optional

from . import log, ranks, settings
from .collectives import (
    Allgatherv,
    Allreduce,
    Barrier,
    Broadcast,
    Group,
    ReductionOp,
    allgather,
    allgatherv,
    allreduce,
    barrier,
    broadcast,
    get_group_master_rank,
)
from .errors import (
    DataMismatch,
    DriftError,
    LayoutMismatch,
    LibraryError,
    NotMember,
    RankFailure,
    WaitTimeout,
)
from .ranks import (
    get_local_rank,
    get_local_size,
    get_master_rank,
    get_rank,
    get_size,
    is_master_rank,
)

__version__ = "0.1.0"

# What needs TensorFlow is imported when the import of the package brings it in, or when first used.
_SUBMODULES = ("keras", "data", "models", "metrics", "optimizers")
_FROM_KERAS = {
    "Model": "keras.model",
    "Sequential": "keras.model",
    "ParallelStrategy": "keras.model",
    "batch_weight": "keras.step",
    "regroup": "keras.regroup",
}

__all__ = (
    [
        "Allgatherv",
        "Allreduce",
        "Barrier",
        "Broadcast",
        "DataMismatch",
        "DriftError",
        "Group",
        "LayoutMismatch",
        "LibraryError",
        "NotMember",
        "RankFailure",
        "ReductionOp",
        "WaitTimeout",
        "allgather",
        "allgatherv",
        "allreduce",
        "barrier",
        "broadcast",
        "config",
        "get_group_master_rank",
        "get_local_rank",
        "get_local_size",
        "get_master_rank",
        "get_rank",
        "get_size",
        "init",
        "is_master_rank",
    ]
    + list(_SUBMODULES)
    + list(_FROM_KERAS)
)


def _needs_tensorflow(name: str) -> None:
    if importlib.util.find_spec("tensorflow") is None:
        raise ImportError(
            "tarantella.{} needs TensorFlow 2.10 to 2.21, which is not installed: pip install "
            "'tensorflow>=2.10,<2.22'".format(name)
        )


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        _needs_tensorflow(name)
        return importlib.import_module("." + name, __name__)
    if name in _FROM_KERAS:
        _needs_tensorflow(name)
        value = getattr(importlib.import_module("." + _FROM_KERAS[name], __name__), name)
        globals()[name] = value
        return value
    raise AttributeError("module {!r} has no attribute {!r}".format(__name__, name))


def __dir__() -> list:
    return sorted(set(globals()) | set(__all__))


def init(devices_per_node: Optional[int] = None) -> None:
    """Kept for scripts that call it: the import has initialised already.

    An argument that contradicts what was chosen is a ValueError.
    """
    chosen = config()["devices_per_node"]
    if devices_per_node is not None and chosen is not None and int(devices_per_node) != chosen:
        raise ValueError(
            "init(devices_per_node={}) contradicts the {} ranks on this host; choose their number"
            " by tarantella --n-per-node".format(devices_per_node, chosen)
        )


def config() -> dict:
    """What was chosen, and where it comes from."""
    from . import library

    return {
        "version": __version__,
        "library": library.path(),
        "rank": get_rank(),
        "size": get_size(),
        "local_rank": get_local_rank(),
        "local_size": get_local_size(),
        "devices_per_node": get_local_size() if get_size() > 1 else None,
        "settings": settings.get().as_dict(),
    }


def _start() -> None:
    settings.get()
    ranks.join()
    log.set_up()
    wanted = settings.get().frontend == "tensorflow"
    if wanted and importlib.util.find_spec("tensorflow") is not None:
        importlib.import_module(".keras", __name__).start()


_start()
