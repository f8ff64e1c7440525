"""Changing the class of an object in place, to one that adds methods, and back.

The new class bears the names of the old one, so summaries, `isinstance` and error messages stay as
they were. While an object is saved it gets its old class back, so files are what plain Keras
writes.
"""

import contextlib
from typing import Any, Dict, Iterator, List, Tuple, Type

_classes: Dict[Tuple[type, type], type] = {}


def extend(thing: Any, addition: Type[Any]) -> None:
    """Gives `thing` a class that puts `addition` before its own; twice is once."""
    if isinstance(thing, addition):
        return
    former = type(thing)
    key = (addition, former)
    if key not in _classes:
        made = type(
            former.__name__,
            (addition, former),
            {
                "__module__": former.__module__,
                "__qualname__": former.__qualname__,
                "__doc__": former.__doc__,
                "_tarantella_former_class": former,
            },
        )
        _classes[key] = made
    object.__setattr__(thing, "__class__", _classes[key])


def former(thing: Any) -> type:
    """The class that an object had before `extend`; its own if it was not extended."""
    return getattr(type(thing), "_tarantella_former_class", type(thing))


@contextlib.contextmanager
def restored(*things: Any) -> Iterator[None]:
    """The objects have their former classes within the block."""
    changed: List[Tuple[Any, type]] = []
    try:
        for thing in things:
            if thing is not None and former(thing) is not type(thing):
                changed.append((thing, type(thing)))
                object.__setattr__(thing, "__class__", former(thing))
        yield
    finally:
        for thing, own in changed:
            object.__setattr__(thing, "__class__", own)
