"""Collectives of scripts that take long say for which ranks they wait."""

import os
import re
import subprocess
import sys
import tempfile
import threading
import unittest
from typing import Tuple

LAUNCHER = os.environ.get("GASPI_RUN", "gaspi_run")
GUARD_S = 120.0
# The last rank does not come, or is stopped: before a collective, or in the midst of it, which rank
# 1 has left by its count.
PROGRAM = """
import os, signal, sys
import numpy as np
import tarantella as tnt
from tarantella import attendance

way, rank, last = sys.argv[1], tnt.get_rank(), tnt.get_size() - 1
tnt.barrier()
pair = tnt.Barrier(tnt.Group([1, last]))
if way == "group" and rank > 0:
    pair()
tnt.allreduce(1)
enter = attendance.enter


def enter_and_do(what):
    def do(group):
        entered = enter(group)
        what(entered)
        return entered

    attendance.enter = do


if way == "midst":
    if rank == 1:
        enter_and_do(attendance.leave)
    elif rank == last:
        enter_and_do(lambda _: os.kill(os.getpid(), signal.SIGSTOP))
elif rank == last:
    os.kill(os.getpid(), signal.SIGSTOP) if way == "stopped" else signal.pause()
if way in ("group", "commit"):
    pair() if rank > 0 else signal.pause()
elif way == "allgatherv":
    tnt.Allgatherv(np.ones(1 + rank))(np.ones(1 + rank))
elif way == "broadcast":
    tnt.broadcast(np.ones(3), root=last)
else:
    tnt.barrier()
"""


class Waits(unittest.TestCase):
    """One job of three ranks for each way to wait."""

    def expect(
        self,
        way: str,
        procedure: str,
        waiting: Tuple[int, ...],
        where: str = "",
        **environment: str
    ) -> None:
        """Each of the ranks says that a procedure waits for the last rank alone."""
        missing = {
            rank: re.compile(
                r"\[rank {}\].* {} has waited \d+ s for rank 2 on [^;\s]+{};".format(
                    rank, procedure, where
                )
            )
            for rank in waiting
        }
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "late.py")
            with open(program, "w", encoding="utf-8") as file:
                file.write(PROGRAM)
            job = subprocess.Popen(
                [LAUNCHER, "-n", "3", "--kill-on-failure", sys.executable, program, way],
                stderr=subprocess.PIPE,
                text=True,
                env=dict(os.environ, TNT_FRONTEND="none", GASPI_STALL_WARNING="1", **environment),
            )
            guard = threading.Timer(GUARD_S, job.terminate)
            guard.start()
            text = ""
            try:
                for line in job.stderr:
                    text += line
                    missing = {at: each for at, each in missing.items() if not each.search(line)}
                    if not missing:
                        break
            finally:
                guard.cancel()
                # gaspi_run continues what is stopped when it ends a job.
                job.terminate()
                job.communicate()
        self.assertFalse(missing, text)

    def test_barrier(self) -> None:
        for transport in ({}, {"GASPI_TRANSPORT": "tcp"}):
            with self.subTest(transport=transport):
                self.expect("barrier", "gaspi_coll_barrier", (0, 1), **transport)

    def test_other_collectives(self) -> None:
        self.expect("broadcast", "gaspi_coll_broadcast_list", (0, 1))
        self.expect("allgatherv", "gaspi_coll_allgather", (0, 1))

    def test_groups_count_by_themselves(self) -> None:
        self.expect("group", "gaspi_coll_barrier", (1,))
        # The group is made at its first use.
        self.expect("commit", "gaspi_group_commit", (1,))

    def test_rank_that_is_stopped_in_the_midst_has_not_left(self) -> None:
        # In one memory a rank that is stopped can be asked.
        where = ", in the midst of it: all have come to it"
        self.expect("midst", "gaspi_coll_barrier", (0,), where, GASPI_TRANSPORT="auto")

    def test_stopped_rank_does_not_answer(self) -> None:
        self.expect("stopped", "gaspi_coll_barrier", (0, 1), GASPI_TRANSPORT="tcp")


if __name__ == "__main__":
    unittest.main()
