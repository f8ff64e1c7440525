"""Who has come to a wait: each rank counts the collectives that it has entered where others read.

The counts lie in a segment of the library, one for each set of ranks that has a group. A rank that
has waited long reads those of the others, which their library answers: a rank that has counted
fewer is late. Until then a collective costs one more count.
"""

import ctypes
import zlib
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import library

_COUNTS = 64
_WORD = 8
_NOT_READ = 2**64 - 1
_QUEUE = 0
_ANSWER_LIMIT_MS = 2000


class Entered(NamedTuple):
    """A collective that this rank has entered."""

    members: Tuple[int, ...]
    place: int
    count: int


class Board:
    """The counts of this rank, and behind them room for one count of each rank."""

    def __init__(self, rank: int, size: int) -> None:
        number = ctypes.c_uint()
        library.call("gaspi_segment_max", ctypes.byref(number))
        # Programs that use the library beside this package begin with the first segments.
        self._segment = number.value - 1
        self._rank, self._size = rank, size
        self._groups: Dict[int, Tuple[int, ...]] = {library.GROUP_ALL: tuple(range(size))}
        library.wait(
            "gaspi_segment_create",
            self._segment,
            _WORD * (_COUNTS + size),
            library.GROUP_ALL,
            after=(library.MEM_INITIALIZED,),
        )
        start = ctypes.c_void_p()
        library.call("gaspi_segment_ptr", self._segment, ctypes.byref(start))
        self._words = (ctypes.c_uint64 * (_COUNTS + size)).from_address(start.value or 0)

    def name_group(self, group: int, members: Sequence[int]) -> None:
        """Takes note of the ranks of a group."""
        self._groups[group] = tuple(members)

    def enter(self, group: int) -> Optional[Entered]:
        """Counts a collective of a group; None if its ranks are not known."""
        members = self._groups.get(group)
        if members is None:
            return None
        text = ",".join(str(member) for member in members).encode()
        place = 0 if len(members) == self._size else 1 + zlib.crc32(text) % (_COUNTS - 1)
        self._words[place] += 1
        return Entered(members, place, self._words[place])

    def late(self, entered: Entered) -> List[int]:
        """The ranks that have not come to a collective, or do not answer."""
        others = [member for member in entered.members if member != self._rank]
        for other in others:
            self._words[_COUNTS + other] = _NOT_READ
            # One that cannot be asked stays marked.
            library.load().gaspi_read(
                self._segment,
                _WORD * (_COUNTS + other),
                other,
                self._segment,
                _WORD * entered.place,
                _WORD,
                _QUEUE,
                _ANSWER_LIMIT_MS,
            )
        library.load().gaspi_wait(_QUEUE, _ANSWER_LIMIT_MS)
        found = {other: self._words[_COUNTS + other] for other in others}
        return [
            other for other in others if found[other] < entered.count or found[other] == _NOT_READ
        ]


_board: Optional[Board] = None


def open_board(rank: int, size: int) -> None:
    """Makes the counts, together with all ranks of the job."""
    global _board
    _board = Board(rank, size)


def name_group(group: int, members: Sequence[int]) -> None:
    """Tells which ranks, by the library's numbers, a group has."""
    if _board is not None:
        _board.name_group(group, members)


def enter(group: Optional[int]) -> Optional[Entered]:
    """Counts a collective of a group; None where nobody counts."""
    return None if _board is None or group is None else _board.enter(group)


def describe_late(entered: Optional[Entered]) -> str:
    """For whom a collective waits, in words."""
    from . import ranks

    if _board is None or entered is None:
        return "other ranks"
    late = _board.late(entered)
    if not late:
        return "ranks that have all come to it"
    return " and ".join(ranks.describe(number) for number in late)
