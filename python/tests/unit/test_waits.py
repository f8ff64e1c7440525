"""Collectives of scripts that take long say for which ranks they wait."""

import os
import signal
import subprocess
import sys
import tempfile
import unittest

LAUNCHER = os.environ.get("GASPI_RUN", "gaspi_run")
# The last rank does not come, or is stopped; the others give up. `signal.pause` ends with the job.
PROGRAM = """
import os, signal, sys
import numpy as np
import tarantella as tnt

way, rank, last = sys.argv[1], tnt.get_rank(), tnt.get_size() - 1
tnt.barrier()
pair = tnt.Barrier(tnt.Group([1, last]))
if way == "group" and rank > 0:
    pair()
tnt.allreduce(1)
if rank == last:
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


def said(way: str, **environment: str) -> str:
    """What a job of three ranks writes that ends because its last rank does not come."""
    folder = tempfile.mkdtemp()
    program = os.path.join(folder, "late.py")
    with open(program, "w", encoding="utf-8") as file:
        file.write(PROGRAM)
    job = subprocess.Popen(
        [LAUNCHER, "-n", "3", "--kill-on-failure", sys.executable, program, way],
        stderr=subprocess.PIPE,
        text=True,
        env=dict(
            os.environ,
            TNT_FRONTEND="none",
            TNT_TIMEOUT="5",
            GASPI_STALL_WARNING="1",
            **environment
        ),
    )
    try:
        return job.communicate(timeout=120)[1]
    finally:
        if job.poll() is None:
            job.send_signal(signal.SIGTERM)
            job.communicate()
        os.remove(program)
        os.rmdir(folder)


class Waits(unittest.TestCase):
    """One job for each way to wait."""

    def expect(self, text: str, procedure: str, waiting: int, late: str) -> None:
        """A rank has said for whom a procedure waits, and so has its error."""
        warning = r"\[rank {}\].* {} has waited \d+ s for {};".format(waiting, procedure, late)
        self.assertRegex(text, warning)
        self.assertRegex(text, r"WaitTimeout: {} has waited 5 s for {};".format(procedure, late))

    def test_barrier(self) -> None:
        for name, environment in (("shm", {}), ("tcp", {"GASPI_TRANSPORT": "tcp"})):
            with self.subTest(transport=name):
                text = said("barrier", **environment)
                self.expect(text, "gaspi_coll_barrier", 0, r"rank 2 on \S+")
                self.expect(text, "gaspi_coll_barrier", 1, r"rank 2 on \S+")

    def test_other_collectives(self) -> None:
        self.expect(said("broadcast"), "gaspi_coll_broadcast_list", 0, r"rank 2 on \S+")
        self.expect(said("allgatherv"), "gaspi_coll_allgather", 1, r"rank 2 on \S+")

    def test_groups_count_by_themselves(self) -> None:
        self.expect(said("group"), "gaspi_coll_barrier", 1, r"rank 2 on \S+")
        # The group is made at its first use.
        self.expect(said("commit"), "gaspi_group_commit", 1, r"rank 2 on \S+")

    def test_stopped_rank_does_not_answer(self) -> None:
        text = said("stopped", GASPI_TRANSPORT="tcp")
        self.expect(text, "gaspi_coll_barrier", 0, r"rank 2 on \S+")


if __name__ == "__main__":
    unittest.main()
