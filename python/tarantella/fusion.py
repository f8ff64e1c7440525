"""Fused buffers of the library: their creation and layout. Knows nothing of TensorFlow."""

import ctypes
from typing import List, NamedTuple, Optional, Sequence, Tuple

from . import library, ranks


class Tensor(NamedTuple):
    """A tensor of a fused buffer."""

    name: str
    shape: Tuple[int, ...]
    dtype: str

    @property
    def count(self) -> int:
        """Its elements."""
        count = 1
        for length in self.shape:
            count *= int(length)
        return count


class Layout(NamedTuple):
    """What all ranks have to declare alike."""

    tensors: Tuple[Tensor, ...]
    op: str = "sum"
    threshold: int = 0
    reverse: bool = False
    wire: Optional[str] = None


def create(layout: Layout) -> int:
    """Makes the buffer, together with all ranks, and gives its number."""
    table = (library.FusionTensor * len(layout.tensors))()
    for entry, tensor in zip(table, layout.tensors):
        entry.count, entry.datatype = tensor.count, library.TYPES[tensor.dtype]
    options = library.FusionOptions(
        size=ctypes.sizeof(library.FusionOptions),
        op=library.OPERATIONS[layout.op],
        threshold=layout.threshold,
        order=library.REVERSE if layout.reverse else 0,
        contributions=1,
        wire=library.TYPES[layout.wire] if layout.wire else 0,
        background=1,
    )
    fusion, group = ctypes.c_uint64(), ranks.world_group()
    library.wait(
        "gaspi_fusion_create",
        ctypes.addressof(table),
        len(layout.tensors),
        group,
        ctypes.addressof(options),
        ctypes.addressof(fusion),
        group=group,
    )
    return fusion.value


def buckets(fusion: int, tensors: Sequence[Tensor]) -> List[List[int]]:
    """The numbers of the tensors of each bucket; tensors without elements have none."""
    num = library.size_t()
    library.call("gaspi_fusion_buckets", fusion, ctypes.addressof(num))
    result: List[List[int]] = [[] for _ in range(num.value)]
    for number, tensor in enumerate(tensors):
        if tensor.count:
            bucket = library.size_t()
            library.call("gaspi_fusion_bucket", fusion, number, ctypes.addressof(bucket))
            result[bucket.value].append(number)
    return result


def free(fusion: int) -> None:
    """Frees a buffer that nobody uses any more."""
    library.load().gaspi_fusion_free(fusion)
