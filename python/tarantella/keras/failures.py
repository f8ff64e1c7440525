"""Errors of the operators as exceptions of this package, and signals while a rank waits in them."""

import contextlib
import functools
import os
import signal
import threading
from typing import Any, Callable, ContextManager, Iterator, List, Optional

import tensorflow as tf

from .. import errors, library, operators

_MARK = "tarantella: "


@contextlib.contextmanager
def translated(control: Callable[[], Any]) -> Iterator[None]:
    """Within the block, what an operator reports becomes RankFailure, WaitTimeout or DataMismatch.

    `control` gives the control line of the model, or None.
    """
    _interrupts.watch()
    # A wait outside of such a block, in a function that was traced, may have left the mark.
    operators.functions().tarantella_tf_interrupt(0)
    outside = not _thread.translates
    _thread.translates = True
    try:
        yield
    except tf.errors.OpError as error:
        translation = translate(error, control())
        if translation is None:
            raise
        raise translation from None
    except RuntimeError as error:
        # TensorFlow loses its own error when Python's handler of Ctrl-C raises at the same time.
        if "REPLACED BY KeyboardInterrupt" in str(error):
            raise KeyboardInterrupt() from None
        raise
    except Exception as error:
        original = _traced(error)
        if original is None:
            raise
        raise original from None
    finally:
        _thread.translates = not outside
        operators.functions().tarantella_tf_interrupt(0)


def in_own_loop() -> ContextManager[None]:
    """Around what loops without fit call: as `translated` where operators run at once, unless a
    caller translates already.

    What is traced fails when its function is called. Within it this only lets Ctrl-C end the wait.
    """
    if _thread.translates:
        return contextlib.nullcontext()
    if tf.executing_eagerly():
        return translated(lambda: None)
    _interrupts.watch()
    return contextlib.nullcontext()


def watch_functions() -> None:
    """Has calls of tf.functions, and of concrete ones, do as `in_own_loop`, once: a loop of one's
    own may be traced as a whole, and then fails where its function is called.
    """
    kinds = [type(tf.function(lambda: None))]
    for kind in kinds + tf.types.experimental.ConcreteFunction.__subclasses__():
        if kind.__call__ not in _watched:
            kind.__call__ = _in_own_loop(kind.__call__)
            _watched.append(kind.__call__)


def _in_own_loop(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def watched(function: Any, *arguments: Any, **named: Any) -> Any:
        with in_own_loop():
            return call(function, *arguments, **named)

    return watched


# How functions are called since they are watched.
_watched: List[Callable[..., Any]] = []


class _Thread(threading.local):
    """Whether this thread is in a block that translates."""

    translates = False


_thread = _Thread()


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
    if isinstance(error, tf.errors.AbortedError):
        return library.rank_failure(text) or errors.LibraryError(text)
    if isinstance(error, tf.errors.FailedPreconditionError) and control is not None:
        difference = control.difference()
        if difference is not None:
            return difference
    return None


def _traced(error: BaseException) -> Optional[BaseException]:
    """The exception of this package that TensorFlow has put its own in the place of, since it does
    not know how to make another one: so it does while it traces a function that it has converted.
    """
    original = error.__context__ if type(error).__name__ == "StagingError" else None
    while original is not None and type(original).__module__ != errors.__name__:
        original = original.__context__
    return original


def _first_line(text: str) -> str:
    """Our words of a message, without the nodes that TensorFlow appends."""
    text = text[text.index(_MARK) + len(_MARK) :]
    return text.split("\n")[0].partition(" [Op:")[0].strip()


class _Interrupts:
    """Has operators that wait end when Ctrl-C was pressed.

    Python runs its handler only once the operator has returned. What it writes to the wakeup
    descriptor when the signal comes is read by a thread, which tells the operators.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._write: Optional[int] = None

    def watch(self) -> None:
        """Begins, in the main thread; where another library has the descriptor, it keeps it."""
        if threading.current_thread() is not threading.main_thread():
            return
        with self._lock:
            if self._write is not None:
                return
            read, write = os.pipe()
            os.set_blocking(write, False)
            former = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
            if former != -1:
                signal.set_wakeup_fd(former)
                os.close(read)
                os.close(write)
                return
            self._write = write
            threading.Thread(
                target=self._read, args=(read,), name="tarantella-signals", daemon=True
            ).start()

    @staticmethod
    def _read(read: int) -> None:
        while True:
            numbers = os.read(read, 64)
            if not numbers:
                return
            if signal.SIGINT in numbers:
                operators.functions().tarantella_tf_interrupt(1)


_interrupts = _Interrupts()
