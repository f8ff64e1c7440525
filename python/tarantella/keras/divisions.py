"""Divided datasets that are kept for a dataset that comes again.

How a dataset is divided is traced, which takes as long as many small batches, and scripts evaluate
the same dataset again and again. The divided one is kept in an attribute of the user's, from its
second time on: what comes once only would stay until Python's collector finds the circle.
"""

from typing import Any, Callable, Optional, Tuple

import tensorflow as tf

from .. import data, ranks
from .sources import Source

_NAME = "_tarantella_divided"


def of(
    given: Any,
    source: Source,
    how: str,
    check: Optional[Callable[[int], None]],
    make: Callable[[data.Watch], tf.data.Dataset],
) -> Tuple[tf.data.Dataset, data.Watch]:
    """What `make` gives, and what watches it: of a source that is that of what the user gave. `how`
    tells what differs by `make`. All of it has to be iterated, or else `forget` to be called.
    """
    watch = data.Watch(check)
    if source.dataset is not given:
        return make(watch), watch
    # Where ranks were lost it is cut anew.
    kept, key = vars(given).setdefault(_NAME, {}), (how, ranks.members(), ranks.get_rank())
    if key not in kept:
        kept[key] = None
        return make(watch), watch
    if kept[key] is None:
        kept[key] = make(watch), watch
    kept[key][1].begin(check)
    return kept[key]


def forget(given: Any) -> None:
    """An iterator of what is kept may still be there."""
    if isinstance(given, tf.data.Dataset):
        vars(given).pop(_NAME, None)
