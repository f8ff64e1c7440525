"""Exceptions of the package.

All are subclasses of the built-in exception that fits, so a script need not know this module.
"""

from typing import Optional


class LibraryError(RuntimeError):
    """A call of libgaspi failed; the text has the library's reason and remedy."""

    def __init__(self, text: str, code: int = -1) -> None:
        super().__init__(text)
        self.code = code


class RankFailure(RuntimeError):
    """A rank of the job died or left while others needed it.

    `rank` is its number at the time of the failure, `host` the name of its host (None if not
    known), `reason` what the library says.
    """

    def __init__(self, rank: Optional[int], host: Optional[str], reason: str) -> None:
        where = "a rank" if rank is None else "rank {}".format(rank)
        if host:
            where += " on {}".format(host)
        super().__init__(
            "{} failed: {}. The output of that rank, or of the launcher, has the cause".format(
                where, reason
            )
        )
        self.rank = rank
        self.host = host
        self.reason = reason


class WaitTimeout(TimeoutError):
    """The other ranks did not answer within TNT_TIMEOUT seconds."""


class DataMismatch(RuntimeError):
    """Ranks were fed different batches."""


class LayoutMismatch(RuntimeError):
    """The models, optimizers or settings of the ranks differ."""


class DriftError(RuntimeError):
    """Weights or learning rates of the ranks differ, which were equal before."""


class NotMember(RuntimeError):
    """A communicating call in a child process of a rank, or after the rank has left its job."""
