"""Errors of the operators as exceptions of this package, and signals while a rank waits in them."""

import contextlib
import os
import signal
import threading
from typing import Any, Callable, Iterator, Optional

import tensorflow as tf

from .. import errors, ranks
from . import operators

_MARK = "tarantella: "


@contextlib.contextmanager
def translated(control: Callable[[], Any]) -> Iterator[None]:
    """Within the block, what an operator reports becomes RankFailure, WaitTimeout or DataMismatch.

    `control` gives the control line of the model, or None.
    """
    try:
        yield
    except tf.errors.OpError as error:
        translation = translate(error, control())
        if translation is None:
            raise
        raise translation from None
    except errors.LibraryError as error:
        failure = _failure_of(str(error))
        if failure is None:
            raise
        raise failure from None


def translate(error: Any, control: Any = None) -> Optional[BaseException]:
    """The exception for an error of TensorFlow; None if it is not by our operators."""
    text = str(error.message)
    if _MARK not in text:
        return None
    text = _first_line(text)
    if isinstance(error, tf.errors.CancelledError):
        return KeyboardInterrupt()
    if isinstance(error, tf.errors.DeadlineExceededError):
        return errors.WaitTimeout(text)
    if isinstance(error, tf.errors.UnavailableError):
        return _failure_of(text) or errors.LibraryError(text)
    if isinstance(error, tf.errors.FailedPreconditionError) and control is not None:
        difference = control.difference()
        if difference is not None:
            return difference
    return None


def _first_line(text: str) -> str:
    """Our words of a message, without the nodes that TensorFlow appends."""
    text = text[text.index(_MARK) + len(_MARK):]
    return text.split("\n")[0].strip()


def _failure_of(text: str) -> Optional[errors.RankFailure]:
    dead = ranks.dead_ranks()
    if not dead:
        return None
    return errors.RankFailure(dead[0], ranks.host_of(dead[0]), text)
