"""HDF5 files on a disk that may become full.

HDF5 does not bear that a write fails: it cannot close the file then, and ends the process by a
signal, at once or when that exits. So what it writes goes through an object that does not fail, and
the error of the system is raised when HDF5 is done.
"""

import contextlib
import functools
import os
import threading
from typing import Any, Iterator, List, Optional, Tuple

# Longer pieces are elements of tensors, which HDF5 does not read back.
_LONGEST_KEPT = 1 << 20


class Output:
    """A file for HDF5, with the methods of one. Behind the first `error` nothing more is written:
    what HDF5 may want to read is kept in memory.
    """

    def __init__(self, path: Any, keeps: bool) -> None:
        self.error: Optional[OSError] = None
        self._file = open(path, "r+b" if keeps else "w+b", buffering=0)
        self._at = 0
        self._length = os.fstat(self._file.fileno()).st_size
        self._kept: List[Tuple[int, bytes]] = []

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        begins = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}
        self._at = begins[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        begin, self._at = self._at, self._at + len(view)
        self._length = max(self._length, self._at)
        self._try(lambda: self._write(view, begin))
        if not self._is_written() and len(view) <= _LONGEST_KEPT:
            self._kept.append((begin, bytes(view)))
        return len(view)

    def readinto(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        begin, self._at = self._at, self._at + len(view)
        found = b"" if self._file.closed else os.pread(self._file.fileno(), len(view), begin)
        view[:] = found + bytes(len(view) - len(found))
        for at, kept in self._kept:
            first, last = max(at, begin), min(at + len(kept), begin + len(view))
            if first < last:
                view[first - begin : last - begin] = kept[first - at : last - at]
        return len(view)

    def read(self, size: int) -> bytes:
        content = bytearray(size)
        self.readinto(content)
        return bytes(content)

    def truncate(self, size: int) -> int:
        self._length = size
        self._try(lambda: os.ftruncate(self._file.fileno(), size))
        return size

    def flush(self) -> None:
        pass

    def close(self) -> None:
        """HDF5 may still write, where its own file was left open."""
        self._try(self._file.close)

    def _is_written(self) -> bool:
        return self.error is None and not self._file.closed

    def _try(self, action: Any) -> None:
        if self._is_written():
            try:
                action()
            except OSError as error:
                self.error = error

    def _write(self, view: memoryview, begin: int) -> None:
        while len(view):
            written = os.pwrite(self._file.fileno(), view, begin)
            view, begin = view[written:], begin + written


_local = threading.local()
# How files of h5py are opened since they are watched.
_watched: Any = None


@contextlib.contextmanager
def errors_at_the_end() -> Iterator[None]:
    """HDF5 files that this thread opens for writing within the block are outputs, whose first error
    is raised at its end.
    """
    _watch()
    former, outputs = getattr(_local, "outputs", None), []
    _local.outputs = outputs
    failed: Optional[BaseException] = None
    try:
        yield
    except Exception as error:
        failed = error
    finally:
        _local.outputs = former
        for output in outputs:
            output.close()
    for output in outputs:
        if output.error is not None:
            raise output.error from failed
    if failed is not None:
        raise failed


def _watch() -> None:
    """Has h5py give HDF5 outputs within such blocks, once."""
    global _watched
    try:
        import h5py
    except ImportError:
        return
    begin = h5py.File.__init__
    if begin is _watched:
        return

    @functools.wraps(begin)
    def watched(file: Any, name: Any, mode: str = "r", *arguments: Any, **named: Any) -> None:
        outputs = getattr(_local, "outputs", None)
        is_path = isinstance(name, (str, bytes, os.PathLike))
        if outputs is not None and is_path and mode in ("w", "a") and not arguments and not named:
            outputs.append(Output(name, mode == "a" and os.path.exists(name)))
            name = outputs[-1]
        begin(file, name, mode, *arguments, **named)

    h5py.File.__init__ = _watched = watched
