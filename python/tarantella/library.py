"""libgaspi by ctypes: where it is found, the declarations of its C interface, errors as exceptions.

`CDLL` gives up the interpreter's lock during every call. Calls that may wait are made in slices of
100 ms, so signals are answered meanwhile. No function of Python is called from C.

Searched in this order: GASPI_LIBRARY; `lib/libgaspi.so.1` in this package (a wheel has it there);
libgaspi.so.1 as the system's loader finds it.
"""

import ctypes
import os
import re
import time
from typing import Any, Callable, List, Optional, Tuple

from . import attendance, log, settings
from .errors import LibraryError, RankFailure, WaitTimeout

SUCCESS = 0
TIMEOUT = 1
ERROR = -1
GROUP_ALL = 0
SLICE_MS = 100

TYPES = {
    "int8": 16,
    "uint8": 17,
    "int16": 18,
    "uint16": 19,
    "int32": 20,
    "uint32": 21,
    "int64": 22,
    "uint64": 23,
    "float16": 32,
    "bfloat16": 33,
    "float32": 34,
    "float64": 35,
}
OPERATIONS = {
    "sum": 16,
    "prod": 17,
    "min": 18,
    "max": 19,
    "and": 20,
    "or": 21,
    "xor": 22,
    "average": 23,
}
REVERSE = 1

# Memory of a new segment is zero.
MEM_INITIALIZED = 1

_rank_t = ctypes.c_ushort
_group_t = ctypes.c_ubyte
_timeout_t = ctypes.c_ulong
size_t = ctypes.c_ulong


class Piece(ctypes.Structure):
    """gaspi_coll_piece_t."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
        ("datatype", ctypes.c_int),
        ("reserved", ctypes.c_uint),
    ]


class FusionTensor(ctypes.Structure):
    """gaspi_fusion_tensor_t."""

    _fields_ = [("count", ctypes.c_uint64), ("datatype", ctypes.c_int), ("reserved", ctypes.c_uint)]


class FusionOptions(ctypes.Structure):
    """gaspi_fusion_options_t."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("op", ctypes.c_uint64),
        ("threshold", size_t),
        ("limit", size_t),
        ("algorithm", ctypes.c_char_p),
        ("order", ctypes.c_uint),
        ("contributions", ctypes.c_uint),
        ("wire", ctypes.c_uint),
        ("background", ctypes.c_uint),
        ("mode", ctypes.c_uint),
        ("reserved", ctypes.c_uint),
    ]


_void = ctypes.c_void_p
_uint64 = ctypes.c_uint64
_int = ctypes.c_int
_segment_t = ctypes.c_ubyte
_queue_t = ctypes.c_ubyte
_DECLARATIONS = {
    "gaspi_version": [_void],
    "gaspi_proc_init": [_timeout_t],
    "gaspi_proc_term": [_timeout_t],
    "gaspi_proc_rank": [_void],
    "gaspi_proc_num": [_void],
    "gaspi_state_vec_get": [_void],
    "gaspi_group_create": [_void],
    "gaspi_group_add": [_group_t, _rank_t],
    "gaspi_group_commit": [_group_t, _timeout_t],
    "gaspi_group_delete": [_group_t],
    "gaspi_group_max": [_void],
    "gaspi_segment_max": [_void],
    "gaspi_segment_create": [_segment_t, size_t, _group_t, _timeout_t, _int],
    "gaspi_segment_ptr": [_segment_t, _void],
    "gaspi_read": [
        _segment_t,
        size_t,
        _rank_t,
        _segment_t,
        size_t,
        size_t,
        _queue_t,
        _timeout_t,
    ],
    "gaspi_wait": [_queue_t, _timeout_t],
    "gaspi_error_detail": [ctypes.c_char_p, size_t],
    "gaspi_coll_allreduce": [_void, _void, _uint64, _int, _uint64, _group_t, _void, _timeout_t],
    "gaspi_coll_broadcast": [_void, _void, _uint64, _int, _rank_t, _group_t, _void, _timeout_t],
    "gaspi_coll_broadcast_list": [_void, size_t, _rank_t, _group_t, _void, _timeout_t],
    "gaspi_coll_allgather": [_void, _void, _uint64, _int, _group_t, _void, _timeout_t],
    "gaspi_coll_allgatherv": [_void, _void, _void, _void, _int, _group_t, _void, _timeout_t],
    "gaspi_coll_barrier": [_group_t, _void, _timeout_t],
    "gaspi_fusion_create": [_void, size_t, _group_t, _void, _void, _timeout_t],
    "gaspi_fusion_buckets": [_uint64, _void],
    "gaspi_fusion_bucket": [_uint64, size_t, _void],
    "gaspi_fusion_free": [_uint64],
}

_library: Optional[ctypes.CDLL] = None
_path: Optional[str] = None


def _candidates() -> List[str]:
    named = os.environ.get("GASPI_LIBRARY")
    if named:
        return [named]
    packaged = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "libgaspi.so.1")
    return [packaged] if os.path.exists(packaged) else ["libgaspi.so.1"]


def load() -> ctypes.CDLL:
    """The library; loaded and declared once."""
    global _library, _path
    if _library is None:
        name = _candidates()[0]
        # Warnings of the library say which ranks are waited for.
        os.environ.setdefault("GASPI_LOG", "warn")
        try:
            library = ctypes.CDLL(name)
        except OSError as error:
            remedy = (
                "GASPI_LIBRARY has to name libgaspi.so.1"
                if os.environ.get("GASPI_LIBRARY")
                else (
                    "install the wheel of this package, or set GASPI_LIBRARY to the path of"
                    " libgaspi.so.1"
                )
            )
            raise ImportError("libgaspi cannot be loaded: {}; {}".format(error, remedy)) from None
        for symbol, arguments in _DECLARATIONS.items():
            try:
                function = getattr(library, symbol)
            except AttributeError:
                raise ImportError(
                    "{} has no {}: it is older than this package, or another GASPI library; install"
                    " both from the same version".format(name, symbol)
                ) from None
            function.argtypes = arguments
            function.restype = _int
        version = ctypes.c_float()
        library.gaspi_version(ctypes.byref(version))
        if round(version.value, 2) != 1.6:
            raise ImportError(
                "{} has interface {:.2f}, and this package needs 1.6; install both from the same "
                "version".format(name, version.value)
            )
        _library, _path = library, name
    return _library


def path() -> str:
    """The path under which the library was loaded."""
    load()
    if _path is not None and os.path.sep in _path:
        return os.path.abspath(_path)
    return _mapped_path() or str(_path)


def _mapped_path() -> Optional[str]:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                if "/libgaspi.so" in line:
                    return line[line.index("/") :].strip()
    except OSError:
        pass
    return None


def detail() -> str:
    """The library's words on the last failed call of this thread."""
    text = ctypes.create_string_buffer(4096)
    load().gaspi_error_detail(text, len(text))
    return text.value.decode("utf-8", "replace")


def call(name: str, *arguments: Any) -> None:
    """Calls a function that does not wait; a failure is an exception."""
    code = getattr(load(), name)(*arguments)
    if code != SUCCESS:
        raise failure(name, code)


def stall_warning() -> float:
    """Seconds after which a wait is told of: GASPI_STALL_WARNING as for the library, 0 for
    never.
    """
    try:
        return max(0.0, float(os.environ.get("GASPI_STALL_WARNING", "60")))
    except ValueError:
        return 60.0


def wait(
    name: str,
    *arguments: Any,
    after: Tuple[Any, ...] = (),
    group: Optional[int] = None,
    limit: Optional[float] = None
) -> None:
    """Calls a function whose argument before those of `after` is its timeout until it has ended.

    All ranks of `group` call it; a wait that takes long names those that have not. `limit` is in
    seconds, by default TNT_TIMEOUT; 0 waits for ever.
    """
    entered = attendance.enter(group)
    function: Callable[..., int] = getattr(load(), name)

    def attempt() -> bool:
        code = function(*arguments, SLICE_MS, *after)
        if code not in (SUCCESS, TIMEOUT):
            raise failure(name, code)
        return code == SUCCESS

    wait_until(name, attempt, lambda: attendance.describe_late(entered), limit)
    attendance.leave(entered)


def wait_until(
    name: str,
    attempt: Callable[[], bool],
    describe_late: Callable[[], str],
    limit: Optional[float] = None,
) -> None:
    """Repeats an attempt, which takes 100 ms at most, until it says that it is done; messages name
    the wait, and for whom it is.
    """
    limit = settings.get().timeout if limit is None else limit
    begin = time.monotonic()
    warn_after = stall_warning()
    while not attempt():
        waited = time.monotonic() - begin
        if warn_after and waited > warn_after:
            warn_after *= 2
            log.logger().warning(
                "%s has waited %.0f s for %s; kill -USR1 on the launcher (gaspi_run) shows what all"
                " ranks are doing",
                name,
                waited,
                describe_late(),
                extra=log.every_rank(),
            )
        if limit and waited > limit:
            raise WaitTimeout(
                "{} has waited {:g} s for {}; see what they are doing by kill -USR1 on the"
                " launcher, or raise TNT_TIMEOUT (seconds, 0: no limit)".format(
                    name, limit, describe_late()
                )
            )


def failure(name: str, code: int) -> Exception:
    """The exception for a call that failed: RankFailure if a rank died or left, else
    LibraryError.
    """
    text = detail() or "code {}".format(code)
    lost = rank_failure(text) if code == ERROR else None
    # Most reasons begin with the procedure.
    named = text if text.startswith(name + ":") else "{}: {}".format(name, text)
    return lost or LibraryError(named, code)


def rank_failure(text: str) -> Optional[RankFailure]:
    """The failure that words of the library tell of; None if they do not tell of a rank that is
    lost.
    """
    from . import ranks

    said = re.search(r"\brank (\d+) has (?:died|left)\b", text)
    members, dead = ranks.members(), ranks.dead_ranks()
    if said is not None and int(said.group(1)) in members:
        rank = members.index(int(said.group(1)))
        ranks.lose(members[rank])
    elif dead:
        rank = dead[0]
    else:
        return None
    return RankFailure(rank, ranks.host_of(rank), text)
