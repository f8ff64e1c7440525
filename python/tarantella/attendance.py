"""Who has come to a wait, and who has left it: each rank counts the collectives that it has
entered, and those that it has left, where others read.

The counts lie in a segment of the library, two for each set of ranks that has a group. A rank that
has waited long reads those of the others, which their library answers: a rank that has entered
fewer is late. If all have come, those that have not left are the ones that the others wait for.
Until then a collective costs two more counts.

Behind the counts each rank says which number a group can have that it makes: the members have to
make it under the same one, and may have made different groups before.
"""

import ctypes
import time
import zlib
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import library

_COUNTS = 64
# Where counts of what was left and proposals stand, and where words of others go that are read.
_LEFT = _COUNTS
_PROPOSALS = 2 * _COUNTS
_READ = 3 * _COUNTS
_NUMBER_BITS = 8
_PAUSE_S = 0.001
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
    """The words of this rank, and behind them room for one word of each rank."""

    def __init__(self, rank: int, size: int) -> None:
        number = ctypes.c_uint()
        library.call("gaspi_segment_max", ctypes.byref(number))
        # Programs that use the library beside this package begin with the first segments.
        self._segment = number.value - 1
        self._rank, self._size = rank, size
        self._groups: Dict[int, Tuple[int, ...]] = {library.GROUP_ALL: tuple(range(size))}
        # How often a group of these ranks has been made.
        self._made: Dict[Tuple[int, ...], int] = {}
        library.wait(
            "gaspi_segment_create",
            self._segment,
            _WORD * (_READ + size),
            library.GROUP_ALL,
            after=(library.MEM_INITIALIZED,),
        )
        start = ctypes.c_void_p()
        library.call("gaspi_segment_ptr", self._segment, ctypes.byref(start))
        self._words = (ctypes.c_uint64 * (_READ + size)).from_address(start.value or 0)

    def name_group(self, group: int, members: Sequence[int]) -> None:
        """Takes note of the ranks of a group."""
        self._groups[group] = tuple(members)

    def enter(self, group: int) -> Optional[Entered]:
        """Counts a collective of a group; None if its ranks are not known."""
        members = self._groups.get(group)
        if members is None:
            return None
        place = 0 if len(members) == self._size else 1 + _digest(members) % (_COUNTS - 1)
        self._words[place] += 1
        return Entered(members, place, self._words[place])

    def leave(self, entered: Entered) -> None:
        """Counts the end of a collective."""
        self._words[_LEFT + entered.place] = entered.count

    def late(self, entered: Entered) -> List[int]:
        """The ranks that have not come to a collective, or do not answer."""
        return self._below(entered, entered.place)

    def inside(self, entered: Entered) -> List[int]:
        """The other ranks that have not left a collective, to which all have come."""
        return self._below(entered, _LEFT + entered.place)

    def _below(self, entered: Entered, place: int) -> List[int]:
        """The other ranks that have counted less in a place, or do not answer."""
        others = [member for member in entered.members if member != self._rank]
        for other in others:
            self._words[_READ + other] = _NOT_READ
            # One that cannot be asked stays marked.
            self._read(other, place, _ANSWER_LIMIT_MS)
        library.load().gaspi_wait(_QUEUE, _ANSWER_LIMIT_MS)
        found = {other: self._words[_READ + other] for other in others}
        return [
            other for other in others if found[other] < entered.count or found[other] == _NOT_READ
        ]

    def _read(self, other: int, place: int, limit_ms: int) -> int:
        """Begins to read a word of another rank."""
        return library.load().gaspi_read(
            self._segment,
            _WORD * (_READ + other),
            other,
            self._segment,
            _WORD * place,
            _WORD,
            _QUEUE,
            limit_ms,
        )

    def agree(self, members: Tuple[int, ...], number: int) -> int:
        """The largest of the numbers that the members of a new group give; all of them call it."""
        made = self._made.get(members, 0)
        key = _digest(members + (made,))
        place = _PROPOSALS + key % _COUNTS
        self._words[place] = key << _NUMBER_BITS | number
        largest, missing, asked = number, [each for each in members if each != self._rank], False

        def attempt() -> bool:
            nonlocal largest, asked
            for other in missing if not asked else ():
                self._words[_READ + other] = _NOT_READ
                code = self._read(other, place, library.SLICE_MS)
                if code == library.ERROR:
                    raise library.failure("gaspi_group_commit", code)
            asked = True
            code = library.load().gaspi_wait(_QUEUE, library.SLICE_MS)
            if code == library.TIMEOUT:
                return False
            if code != library.SUCCESS:
                raise library.failure("gaspi_group_commit", code)
            asked = False
            for other in list(missing):
                word = self._words[_READ + other]
                if word != _NOT_READ and word >> _NUMBER_BITS == key:
                    largest = max(largest, word & (1 << _NUMBER_BITS) - 1)
                    missing.remove(other)
            if missing:
                time.sleep(_PAUSE_S)
            return not missing

        library.wait_until("gaspi_group_commit", attempt, lambda: _describe(missing))
        self._made[members] = made + 1
        return largest


def _digest(numbers: Tuple[int, ...]) -> int:
    return zlib.crc32(",".join(str(number) for number in numbers).encode())


_board: Optional[Board] = None


def open_board(rank: int, size: int) -> None:
    """Makes the counts, together with all ranks of the job."""
    global _board
    _board = Board(rank, size)


def name_group(group: int, members: Sequence[int]) -> None:
    """Tells which ranks, by the library's numbers, a group has."""
    if _board is not None:
        _board.name_group(group, members)


def agree(members: Sequence[int], number: int) -> int:
    """The largest of the numbers that the members of a new group give; all of them call it."""
    return number if _board is None else _board.agree(tuple(members), number)


def enter(group: Optional[int]) -> Optional[Entered]:
    """Counts a collective of a group; None where nobody counts."""
    return None if _board is None or group is None else _board.enter(group)


def leave(entered: Optional[Entered]) -> None:
    """Counts the end of a collective that `enter` has counted."""
    if _board is not None and entered is not None:
        _board.leave(entered)


def describe_late(entered: Optional[Entered]) -> str:
    """For whom a collective waits, in words."""
    if _board is None or entered is None:
        return "other ranks"
    late = _board.late(entered)
    if late:
        return _describe(late)
    inside = _board.inside(entered)
    if not inside:
        return "itself: all have come to it, and the others have left it"
    return "{}, in the midst of it: all have come to it".format(_describe(inside))


def _describe(numbers: Sequence[int]) -> str:
    from . import ranks

    return " and ".join(ranks.describe(number) for number in numbers)
