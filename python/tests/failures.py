"""How jobs end when a rank fails: exit codes, times and messages.

Needs GASPI_RUN (the launcher), GASPI_LIBRARY and TensorFlow in the Python that runs it. Times are
limits of ten times what is promised, so that a busy machine does not fail the test.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import zipfile
from typing import Any, List, Tuple

HERE = os.path.dirname(os.path.abspath(__file__))
LAUNCHER = os.environ.get("GASPI_RUN", "gaspi_run")


def start(
    way: str,
    ranks: int = 2,
    options: Tuple[str, ...] = (),
    program: str = "failing.py",
    **environment: str,
) -> Any:
    """The job, started. `way` holds the arguments of the program, with blanks between them."""
    return subprocess.Popen(
        [LAUNCHER, "-n", str(ranks)]
        + list(options)
        + [sys.executable, os.path.join(HERE, "jobs", program)]
        + way.split(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=dict(os.environ, **environment),
    )


def ended(job: Any, limit: float = 120) -> Tuple[int, str]:
    """Its exit code and what it wrote."""
    try:
        text = job.communicate(timeout=limit)[1]
    except subprocess.TimeoutExpired:
        job.terminate()
        text = job.communicate()[1]
        raise AssertionError(
            "the job did not end within {} s:\n{}".format(limit, text[-3000:])
        ) from None
    return job.returncode, text


def said_until(job: Any, words: str, limit: float = 120) -> str:
    """What a job writes up to the line with these words."""
    guard = threading.Timer(limit, job.kill)
    guard.start()
    text = ""
    try:
        for line in job.stderr:
            text += line
            if words in line:
                return text
    finally:
        guard.cancel()
    raise AssertionError("the job ended without {!r}:\n{}".format(words, text[-3000:]))


def times(text: str) -> List[Tuple[str, int, float]]:
    """What the ranks have said: text, rank, time."""
    return [
        (what, int(rank), float(when))
        for what, rank, when in re.findall(r"@(.*) rank (\d+) ([\d.]+)", text)
    ]


def between(text: str, first: str, second: str) -> float:
    """Seconds from the first to the last of two kinds of lines."""
    said = times(text)
    begin = [when for what, _, when in said if what == first]
    end = [when for what, _, when in said if what.startswith(second)]
    assert begin and end, "neither {!r} nor {!r} can be missing:\n{}".format(
        first, second, text[-3000:]
    )
    return max(end) - min(begin)


def cpu_seconds(pid: int) -> float:
    """CPU time of a process."""
    with open("/proc/{}/stat".format(pid), encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Failures(unittest.TestCase):
    """One failing job for each way."""

    def test_killed_rank(self) -> None:
        code, text = ended(start("killed"))
        self.assertEqual(code, 128 + signal.SIGKILL, text[-2000:])
        self.assertLess(between(text, "begin", "RankFailure of 1"), 10)
        self.assertIn("[rank 0] Traceback", text)
        self.assertIn("rank 1", text)

    def test_rank_that_raises_in_a_callback(self) -> None:
        code, text = ended(start("raises"))
        self.assertEqual(code, 1, text[-2000:])
        self.assertIn("[rank 1] Traceback", text)
        self.assertIn("ValueError: planted in a callback", text)
        self.assertLess(between(text, "begin", "RankFailure"), 20)

    def test_rank_whose_data_raise(self) -> None:
        code, text = ended(start("pipeline"))
        self.assertEqual(code, 1, text[-2000:])
        self.assertIn("planted in the data", text)
        self.assertLess(between(text, "begin", "RankFailure"), 20)

    def test_rank_that_leaves(self) -> None:
        code, text = ended(start("leaves"))
        self.assertEqual(code, 1, text[-2000:])
        self.assertLess(between(text, "begin", "RankFailure"), 20)

    def test_exit_code_is_kept(self) -> None:
        # With and without a launcher that ends the ranks that are left.
        for options in (("--kill-on-failure",), ()):
            code, text = ended(start("exits", options=options))
            self.assertEqual(code, 7, text[-2000:])
            self.assertIn("RankFailure", text)

    def test_stopped_rank_is_waited_for_until_the_limit(self) -> None:
        job = start("stopped", TNT_TIMEOUT="30", GASPI_STALL_WARNING="5")
        text = ""
        try:
            assert job.stderr is not None
            for line in job.stderr:
                text += line
                if "@WaitTimeout rank 0" in line:
                    break
            self.assertIn("@WaitTimeout rank 0", text)
            self.assertIn("@begin rank 1", text)
            self.assertIn("shows which ranks are late", text)
            self.assertRegex(text, r"rank 0 has waited .*: rank 1 on \S+ has not submitted")
            self.assertGreaterEqual(between(text, "begin", "WaitTimeout"), 29)
        finally:
            # gaspi_run continues what is stopped when it ends a job.
            job.terminate()
            code = job.wait(60)
            job.stderr.close()
        self.assertNotEqual(code, 0)

    def test_stopped_rank_goes_on(self) -> None:
        # In one memory the library of a stopped rank answers for it.
        job = start("continued", GASPI_STALL_WARNING="1", GASPI_TRANSPORT="auto")
        text = said_until(job, "has not submitted")
        pids = {rank: int(what[4:]) for what, rank, _ in times(text) if what.startswith("pid ")}
        begin = cpu_seconds(pids[0])
        # A while to measure, not one to wait for anything.
        time.sleep(4)
        used = cpu_seconds(pids[0]) - begin
        os.kill(pids[1], signal.SIGCONT)
        code, rest = ended(job)
        text += rest
        self.assertEqual(code, 0, text[-2000:])
        self.assertEqual(text.count("@done"), 2, text[-2000:])
        self.assertRegex(text, r"rank 0 has waited .*: rank 1 on \S+ has not submitted")
        self.assertLess(used, 0.2)

    def test_rank_that_dies_while_saving(self) -> None:
        for way in ("saving", "saving_in_fit"):
            with self.subTest(way=way), tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "model.keras")
                code, text = ended(start("{} {}".format(way, path)))
                self.assertEqual(code, 128 + signal.SIGKILL, text[-2000:])
                self.assertLess(between(text, "begin", "RankFailure of 0"), 10)
                # The file of the first time is still whole.
                with zipfile.ZipFile(path) as file:
                    self.assertIsNone(file.testzip())

    def test_full_disk_ends_the_job(self) -> None:
        for way in ("full_disk", "full_disk_in_fit"):
            with self.subTest(way=way), tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "model.keras")
                code, text = ended(start("{} {}".format(way, path)))
                self.assertEqual(code, 1, text[-2000:])
                self.assertIn("make room there, or save to another place", text)
                ends = "OSError" if way == "full_disk" else "RankFailure of 0"
                self.assertLess(between(text, "begin", ends), 20)
                self.assertIn("@OSError rank 0", text)
                # The file of the first time is still whole, and alone.
                self.assertEqual(os.listdir(folder), ["model.keras"])
                with zipfile.ZipFile(path) as file:
                    self.assertIsNone(file.testzip())

    def test_gather_of_a_sparse_gradient_says_for_whom_it_waits(self) -> None:
        code, text = ended(
            start(
                "stopped_sparse",
                options=("--kill-on-failure",),
                TNT_TIMEOUT="10",
                GASPI_STALL_WARNING="2",
            )
        )
        self.assertNotEqual(code, 0)
        self.assertRegex(text, r"gathering a sparse gradient for \d+ s")
        self.assertRegex(text, r"rank 0 has waited .*: rank 1 on \S+ has not submitted")

    def test_rank_that_stops_alone_is_found(self) -> None:
        code, text = ended(start("stops_alone", TNT_TIMEOUT="10", GASPI_STALL_WARNING="2"))
        self.assertNotEqual(code, 0)
        self.assertIn("@WaitTimeout", text)
        self.assertRegex(text, r"rank 0 has waited .*: rank 1 on \S+ has not submitted")
        self.assertRegex(text, r"gaspi_coll_\w+ has waited \d+ s for rank 0 on \S+;")

    def test_fit_on_one_rank_names_the_others(self) -> None:
        code, text = ended(
            start(
                "fit_on_one_rank",
                options=("--kill-on-failure",),
                TNT_TIMEOUT="10",
                GASPI_STALL_WARNING="2",
            )
        )
        self.assertNotEqual(code, 0)
        self.assertIn("@WaitTimeout rank 0", text)
        self.assertRegex(text, r"gaspi_coll_\w+ has waited \d+ s for rank 1 on \S+;")

    def test_interrupt_ends_ranks_that_wait(self) -> None:
        self.interrupt("stopped")
        self.interrupt("own_loop")

    def test_interrupt_ends_the_wait_of_a_traced_loop(self) -> None:
        code, text = ended(start("traced_loop", options=("--kill-on-failure",)))
        self.assertNotEqual(code, 0)
        self.assertLess(between(text, "interrupt", "KeyboardInterrupt"), 2)

    def interrupt(self, way: str) -> None:
        """Interrupts a job in which a rank waits in an operator for one that is stopped."""
        job = start(way, GASPI_STALL_WARNING="1")
        assert job.stderr is not None
        text = ""
        for line in job.stderr:
            text += line
            # So the other rank waits in an operator.
            if "WARNING: waiting for" in line:
                break
        begin = time.time()
        job.send_signal(signal.SIGINT)
        for line in job.stderr:
            text += line
            if "@KeyboardInterrupt rank 0" in line:
                break
        self.assertIn("@KeyboardInterrupt rank 0", text)
        self.assertLess(times(text)[-1][2] - begin, 2)
        job.send_signal(signal.SIGINT)
        job.wait(60)
        job.stderr.close()

    def goes_on_without(self, victim: int, ranks: int) -> None:
        """A job whose rank dies in the middle of fit trains as plain Keras does."""
        options = ("--min-ranks", "1")
        way = "{} 7".format(victim)
        job = start(way, ranks, options, "losing.py", TNT_ON_FAILURE="continue")
        code, text = ended(job, 300)
        self.assertEqual(code, 0, text[-3000:])
        self.assertEqual(text.count("@done"), ranks - 1, text[-3000:])
        self.assertIn("{} of {} ranks are left, and go on".format(ranks - 1, ranks), text)

    def test_job_goes_on_without_its_master(self) -> None:
        self.goes_on_without(0, 2)

    def test_job_goes_on_without_its_last_rank(self) -> None:
        self.goes_on_without(2, 3)

    def goes_on(self, way: str, ranks: int = 3, left: int = 2) -> str:
        """A case of losing_cases.py, by which so many ranks are left; what it wrote."""
        code, text = ended(
            start(way, ranks, ("--min-ranks", "1"), "losing_cases.py", TNT_ON_FAILURE="continue"),
            300,
        )
        self.assertEqual(code, 0, text[-3000:])
        self.assertEqual(text.count("@done"), left, text[-3000:])
        return text

    def test_other_models_go_on_too(self) -> None:
        self.goes_on("other_models")

    def test_steps_that_save_nothing_raise(self) -> None:
        self.goes_on("steps_that_save_nothing", left=1)
        self.goes_on("first_steps_that_save_nothing")

    def test_own_loops_go_on(self) -> None:
        self.goes_on("own_loops", 4, left=1)

    def test_traced_loops_go_on(self) -> None:
        self.goes_on("traced_loops", 3, left=1)

    def test_concrete_loops_go_on(self) -> None:
        self.goes_on("concrete_loops", 4, left=1)

    def test_data_of_other_structures_go_on(self) -> None:
        self.goes_on("data_of_other_structures", 4)

    def test_models_that_were_compiled_again_go_on(self) -> None:
        self.goes_on("compiled_again", 4)

    def test_what_a_step_saves_is_there_before_its_line(self) -> None:
        self.goes_on("what_a_step_saves_is_there_before_its_line", 2)

    def test_deaths_that_are_known_before_a_step_go_on(self) -> None:
        first = int(os.environ.get("GASPI_TEST_SEED", "1"))
        for seed in range(first, first + 2):
            with self.subTest(seed=seed):
                self.goes_on("deaths_that_are_known_before_a_step {}".format(seed), left=1)

    def test_steps_of_two_models_in_turn_go_on(self) -> None:
        self.goes_on("steps_of_two_models_in_turn")

    def test_lost_master_has_a_successor(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.goes_on("lost_master " + folder)

    def test_job_ends_below_its_least_number_of_ranks(self) -> None:
        code, text = ended(
            start("1 7", 2, (), "losing.py", TNT_ON_FAILURE="continue", TNT_MIN_RANKS="2"), 300
        )
        self.assertNotEqual(code, 0)
        self.assertIn("1 of 2 ranks are left, fewer than TNT_MIN_RANKS=2", text)


if __name__ == "__main__":
    unittest.main()
