"""What the layer keeps of each model, outside of it."""

import threading
import weakref
from typing import Any, List, Optional

from .. import ranks
from . import losses, regroup
from .step import Control


class State:
    """What the layer knows of a model, outside of it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.control: Optional[Control] = None
        self.dirty = True
        self.seeded = False
        self.in_fit = 0
        self.own_wish = False
        self.agreed_stop = False
        self.samples: Any = None
        self.weights_total = losses.Total()
        self.sync_batch_norm = False
        self.steps_averaged = 0
        self.warned_of_few_samples = False
        # Where ranks may be lost, see regroup.py.
        self.place: Optional[regroup.Place] = None
        self.saved = regroup.Saved()
        self.saved_counters = regroup.Saved()
        self.counters: List[Any] = []
        self.attempted: Any = None
        self.sums_before: Any = None


_states: "weakref.WeakKeyDictionary[Any, State]" = weakref.WeakKeyDictionary()


def state_of(model: Any) -> State:
    """The state of a model, made on first use."""
    if model not in _states:
        _states[model] = State()
    return _states[model]


def alone() -> bool:
    """Whether the job has had one rank from its start: then nothing is exchanged."""
    return ranks.size_of_job() == 1
