"""`tnt.optimizers.Optimizer`, for training loops of one's own."""

from typing import Any

from .keras import failures
from .keras.optimizers import hook


def Optimizer(optimizer: Any) -> Any:
    """Has an optimizer of Keras apply the sum of all ranks' gradients; in place, and returned.

    Each rank's gradient counts what `tnt.batch_weight` says, 1/p by default.
    """
    failures.watch_functions()
    return hook(optimizer)
