"""The ranks of the job: joining it, leaving it, who is who.

Numbers that this module gives out are those of the job as it is now: after ranks were lost and the
others have gone on (`regroup`), they count from 0 without gaps. `job_rank` is the number that the
library knows for ever. The master is rank 0.
"""

import atexit
import ctypes
import hashlib
import os
import select
import socket
import sys
import threading
import time
import traceback
from typing import List, NamedTuple, Optional, Set, Tuple

from . import errors, library, settings

_LAUNCHER_VARIABLES = (
    "GASPI_JOB_ID",
    "GASPI_RANK",
    "GASPI_NRANKS",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "PMIX_RANK",
    "PMI_RANK",
    "OMPI_COMM_WORLD_RANK",
)
_MEMBER = "TNT_MEMBER"
# Seconds that a rank leaves to one that failed before it: where its process can be watched, and
# elsewhere.
_CAUSE_ENDS_WITHIN = 5.0
_CAUSE_ELSEWHERE_ENDS_WITHIN = 1.0


class _World(NamedTuple):
    rank: int
    members: Tuple[int, ...]
    group: int
    hosts: Tuple[str, ...]
    machines: Tuple[str, ...]
    pids: Tuple[int, ...]


_world: Optional[_World] = None
_joined_pid: Optional[int] = None
_child_of: Optional[Tuple[int, int]] = None
_left = False
_lost: Set[int] = set()


def _launcher_signature() -> str:
    text = "\0".join(os.environ.get(name, "") for name in _LAUNCHER_VARIABLES)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _inherited() -> Optional[Tuple[int, int]]:
    """Rank and size of the rank whose child this process is; None if it is none."""
    parts = os.environ.get(_MEMBER, "").split(":")
    if len(parts) != 4 or parts[0] != _launcher_signature():
        return None
    try:
        pid, rank, size = (int(part) for part in parts[1:])
    except ValueError:
        return None
    return None if pid == os.getpid() else (rank, size)


def _machine() -> str:
    """Tells hosts apart, also those that are namespaces of one machine."""
    parts = [os.environ.get("GASPI_MACHINE", ""), socket.gethostname()]
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            parts.append(file.read().strip())
        parts.append(str(os.stat("/proc/self/ns/net").st_ino))
    except OSError:
        pass
    return " ".join(parts)


def join() -> None:
    """Joins the job that the environment describes; once. A child process of a rank does not
    join.
    """
    global _world, _joined_pid, _child_of
    if _world is not None or _child_of is not None:
        return
    _child_of = _inherited()
    if _child_of is not None:
        return
    library.load()
    library.wait("gaspi_proc_init")
    rank, size = ctypes.c_ushort(), ctypes.c_ushort()
    library.call("gaspi_proc_rank", ctypes.byref(rank))
    library.call("gaspi_proc_num", ctypes.byref(size))
    _joined_pid = os.getpid()
    members = tuple(range(size.value))
    host = socket.gethostname()
    _world = _World(rank.value, members, library.GROUP_ALL, (host,), (_machine(),), (_joined_pid,))
    if size.value > 1:
        os.environ[_MEMBER] = "{}:{}:{}:{}".format(
            _launcher_signature(), _joined_pid, rank.value, size.value
        )
        from . import attendance, collectives

        attendance.open_board(rank.value, size.value)
        told = collectives.allgather_object((host, _machine(), _joined_pid))
        hosts, machines, pids = (tuple(each[at] for each in told) for at in range(3))
        _world = _world._replace(hosts=hosts, machines=machines, pids=pids)
    atexit.register(leave)
    _report_exceptions()


def _report_exceptions() -> None:
    """Has exceptions that nobody catches begin with the rank."""
    before = sys.excepthook

    def report(kind, value, trace):
        if size_of_job() == 1 or before is not sys.__excepthook__:
            before(kind, value, trace)
            return
        text = "".join(traceback.format_exception(kind, value, trace))
        sys.stderr.write("[rank {}] {}".format(get_rank(), text))
        sys.stderr.flush()

    sys.excepthook = report


def leave() -> None:
    """Leaves the job; others that still need this rank are told so by the library."""
    global _left
    if _joined_pid != os.getpid() or _left:
        return
    try:
        _await_causes()
    finally:
        _left = True
        library.load().gaspi_proc_term(1000)


def _await_causes() -> None:
    """Waits, for a while, until the processes of ranks that left before this one have ended.

    A rank leaves the job before its process ends. The launcher takes the status of the process that
    ends first, which has to be that of the cause and not of a rank that failed because of it.
    """
    world = _require_member()
    dead = {world.members[rank] for rank in dead_ranks()}
    deadline = time.monotonic() + _CAUSE_ENDS_WITHIN
    for number in sorted(_lost.intersection(world.members) - dead):
        place = world.members.index(number)
        remaining = max(0.0, deadline - time.monotonic())
        if world.machines[place] != world.machines[world.rank] or not hasattr(os, "pidfd_open"):
            time.sleep(min(remaining, _CAUSE_ELSEWHERE_ENDS_WITHIN))
            continue
        try:
            process = os.pidfd_open(world.pids[place])
        except ProcessLookupError:
            continue
        except OSError:
            time.sleep(min(remaining, _CAUSE_ELSEWHERE_ENDS_WITHIN))
            continue
        try:
            select.select([process], [], [], remaining)
        finally:
            os.close(process)


def _require_member() -> _World:
    if _world is None or _joined_pid != os.getpid():
        raise errors.NotMember(
            "this process is a child of rank {}: it knows rank and size, but only the rank itself"
            " may communicate; move the call to the process that the launcher started".format(
                get_rank()
            )
        )
    if _left:
        raise errors.NotMember(
            "this rank has left its job; communicate before the end of the script"
        )
    return _world


def world_group() -> int:
    """The library's group of all ranks."""
    return _require_member().group


def members() -> Tuple[int, ...]:
    """The library's numbers of all ranks, in their order."""
    return (0,) if _world is None else _world.members


def job_rank(rank: int) -> int:
    """The library's number of a rank."""
    known = members()
    if not 0 <= rank < len(known):
        raise ValueError(
            "rank {} does not exist; the job has ranks 0 to {}".format(rank, len(known) - 1)
        )
    return known[rank]


def get_rank() -> int:
    """Number of this rank, from 0."""
    if _child_of is not None:
        return _child_of[0]
    return 0 if _world is None else _world.rank


def get_size() -> int:
    """Number of ranks."""
    if _child_of is not None:
        return _child_of[1]
    return 1 if _world is None else len(_world.members)


def get_master_rank() -> int:
    """The rank that writes files and prints: 0, on the first host."""
    return 0


def is_master_rank() -> bool:
    """Whether this rank is the master."""
    return get_rank() == get_master_rank()


def get_local_rank() -> int:
    """Number of this rank among those of its host, from 0."""
    if _world is None or _child_of is not None:
        return int(os.environ.get("GASPI_SOCKET", get_rank()))
    own = _world.machines[_world.rank]
    return sum(1 for machine in _world.machines[: _world.rank] if machine == own)


def get_local_size() -> int:
    """Number of ranks on this host."""
    if _world is None:
        return 1
    return _world.machines.count(_world.machines[_world.rank])


def host_of(rank: Optional[int]) -> Optional[str]:
    """Name of the host of a rank; None if it is not known."""
    if _world is None or rank is None or rank >= len(_world.hosts):
        return None
    return _world.hosts[rank]


def describe(number: int) -> str:
    """A rank in messages, by the library's number."""
    if number not in members():
        return "rank {} of the library".format(number)
    rank = members().index(number)
    return "rank {} on {}".format(rank, host_of(rank) or "an unknown host")


def size_of_job() -> int:
    """Number of ranks at the start of the job."""
    if _world is None or _joined_pid != os.getpid():
        return 1
    size = ctypes.c_ushort()
    return (
        size.value
        if library.load().gaspi_proc_num(ctypes.byref(size)) == library.SUCCESS
        else len(_world.members)
    )


def dead_ranks() -> List[int]:
    """The ranks, of those that the job has now, which the library knows to be dead."""
    if _world is None or _joined_pid != os.getpid() or _left:
        return []
    size = size_of_job()
    states = (ctypes.c_int * size)()
    if library.load().gaspi_state_vec_get(states) != library.SUCCESS:
        return []
    return [rank for rank, number in enumerate(_world.members) if states[number] != 0]


def is_joined() -> bool:
    """Whether this process may communicate."""
    return _world is not None and _joined_pid == os.getpid() and not _left


def lose(rank: int) -> None:
    """Remembers that a rank, by the library's number, was lost: one that left counts as healthy
    there.
    """
    _lost.add(rank)


def living() -> Tuple[int, ...]:
    """The library's numbers of the ranks that are left."""
    dead = {members()[rank] for rank in dead_ranks()} | _lost
    return tuple(number for number in members() if number not in dead)


def adopt(numbers: Tuple[int, ...], group: int) -> None:
    """The job is these ranks from now on; they are renumbered from 0."""
    global _world
    former = _require_member()
    places = [former.members.index(number) for number in numbers]
    own = former.members[former.rank]
    _world = _World(
        numbers.index(own),
        numbers,
        group,
        tuple(former.hosts[place] for place in places),
        tuple(former.machines[place] for place in places),
        tuple(former.pids[place] for place in places),
    )
