"""The operators for TensorFlow (libtarantella_tf.so), the slots by which graphs name fused buffers,
and the numbers by which datasets name what is told of their batches.

The library lies beside libgaspi.so.1. A slot lives as long as its object; when the ranks of the job
change, every slot gets a new buffer under its number, so graphs stay valid.
"""

import ctypes
import itertools
import os
import weakref
from typing import Any, Callable, List, Optional, Sequence

import tensorflow as tf

from . import fusion, library, ranks, settings

_operators: Any = None
_functions: Optional[ctypes.CDLL] = None
_slots: "weakref.WeakSet[Slot]" = weakref.WeakSet()


def load() -> Any:
    """The operators as Python functions; initialises no context of TensorFlow."""
    global _operators, _functions
    if _operators is None:
        library.load()
        path = os.path.join(os.path.dirname(library.path()), "libtarantella_tf.so")
        if not os.path.exists(path):
            raise ImportError(
                "{} is missing; it has to lie beside libgaspi.so.1: install the wheel of this"
                " package, or build it by tarantella-tf/build.sh".format(path)
            )
        try:
            _operators = tf.load_op_library(path)
        except tf.errors.NotFoundError as error:
            raise ImportError(
                "{} does not fit TensorFlow {}: {}; versions 2.10 to 2.21 fit".format(
                    path, tf.__version__, error.message
                )
            ) from None
        _functions = ctypes.CDLL(path)
        _declare(_functions)
        _functions.tarantella_tf_limit(int(settings.get().timeout * 1000))
        _functions.tarantella_tf_warn(int(library.stall_warning() * 1000))
        _functions.tarantella_tf_tell_sizes(_seen)
    return _operators


def _declare(functions: ctypes.CDLL) -> None:
    number, text = ctypes.c_int64, ctypes.c_uint64
    signatures = {
        "tarantella_tf_slot": (number, []),
        "tarantella_tf_assign": (
            ctypes.c_int,
            [number, text, ctypes.c_uint8, number, ctypes.c_void_p],
        ),
        "tarantella_tf_wish": (None, [number, ctypes.c_int]),
        "tarantella_tf_stop": (ctypes.c_int, [number]),
        "tarantella_tf_differs": (number, [number]),
        "tarantella_tf_last": (None, [number, ctypes.c_void_p]),
        "tarantella_tf_interrupt": (None, [ctypes.c_int]),
        "tarantella_tf_limit": (None, [text]),
        "tarantella_tf_warn": (None, [text]),
        "tarantella_tf_max_dims": (ctypes.c_int, []),
        "tarantella_tf_tell_sizes": (None, [_SEEN]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments


def functions() -> ctypes.CDLL:
    """The functions of the operators' library beside the operators."""
    load()
    assert _functions is not None
    return _functions


class Slot:
    """A fused buffer under a number that graphs may hold."""

    def __init__(self, layout: fusion.Layout) -> None:
        self.layout = layout
        self.number = int(functions().tarantella_tf_slot())
        self.buckets: List[List[int]] = []
        limit = functions().tarantella_tf_max_dims()
        for tensor in layout.tensors:
            if len(tensor.shape) > limit:
                raise ValueError(
                    "{} has {} dimensions; at most {} can be summed".format(
                        tensor.name, len(tensor.shape), limit
                    )
                )
        self.renew()
        _slots.add(self)
        self._release = weakref.finalize(
            self, functions().tarantella_tf_assign, self.number, 0, 0, 0, None
        )
        # The process is about to end: the library frees all buffers together when the rank leaves.
        self._release.atexit = False

    def renew(self) -> None:
        """Makes the buffer on the ranks that the job has now. All ranks call it."""
        shapes: List[int] = []
        for tensor in self.layout.tensors:
            shapes += [len(tensor.shape)] + [int(length) for length in tensor.shape]
        handle = fusion.create(self.layout)
        self.buckets = fusion.buckets(handle, self.layout.tensors)
        table = (ctypes.c_int64 * max(1, len(shapes)))(*shapes)
        functions().tarantella_tf_assign(
            self.number,
            handle,
            ranks.world_group(),
            len(self.layout.tensors),
            ctypes.addressof(table),
        )

    def start(self, tensors: Sequence[Any], scale: Any, order: Any) -> List[Any]:
        """Hands over all tensors of the buffer; a token for each bucket, computed once its tensors
        are.
        """
        return [
            load().tarantella_start(
                gradients=[tensors[at] for at in bucket],
                scale=scale,
                step=order,
                slot=self.number,
                tensors=bucket,
            )
            for bucket in self.buckets
        ]

    def finish(self, tensors: Sequence[Any], tokens: Sequence[Any]) -> List[Any]:
        """The sums of what was handed over. Nothing but the tokens holds them back: what else has
        to be handed over before any wait is up to the caller's control dependencies.
        """
        sums: List[Any] = [None] * len(tensors)
        for bucket, token in zip(self.buckets, tokens):
            waited = load().tarantella_finish(
                token=token,
                T=tensors[bucket[0]].dtype,
                N=len(bucket),
                slot=self.number,
                tensors=bucket,
            )
            for at, total in zip(bucket, waited):
                total.set_shape(tensors[at].shape)
                sums[at] = total
        return sums


class BatchSizes:
    """A function `(index, batch)` under a number by which Cut calls it; not 0 refuses the batch."""

    def __init__(self, seen: Callable[[int, int], int]) -> None:
        self.seen = seen
        self.number = next(_numbers)
        _watching[self.number] = self


def _tell_size(number: int, index: int, batch: int) -> int:
    watching = _watching.get(number)
    return 0 if watching is None else watching.seen(index, batch)


# Who is told of sizes of batches, by number: who is gone is told nothing.
_watching: "weakref.WeakValueDictionary[int, BatchSizes]" = weakref.WeakValueDictionary()
_numbers = itertools.count()
# What operators call, as long as there is a process.
_SEEN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_seen = _SEEN(_tell_size)


def is_plain(leaf: Any) -> bool:
    """Whether our operators can look at the bytes of a tensor."""
    return tf.is_tensor(leaf) and isinstance(leaf, tf.Tensor) and _is_number(leaf.dtype)


def _is_number(dtype: Any) -> bool:
    return dtype.is_floating or dtype.is_integer or dtype.is_complex or dtype.is_bool


def digests(values: Sequence[Any]) -> Any:
    """A number for all bytes of each tensor, as an array; equal for equal bytes on all ranks."""
    return load().tarantella_digest(values=list(values)).numpy()


def drop_all() -> None:
    """Lets go of every buffer, before the ranks that are left make a new group."""
    for slot in sorted(_slots, key=lambda slot: slot.number):
        functions().tarantella_tf_assign(slot.number, 0, 0, 0, None)


def renew_all() -> None:
    """Makes every buffer anew, in the same order on all ranks."""
    for slot in sorted(_slots, key=lambda slot: slot.number):
        slot.renew()
