"""The command `tarantella` as a user meets it, on one host."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

from command import COMMAND, GUARD, ROOT, Case, environment

os.environ.setdefault("TNT_FRONTEND", "none")
sys.path.insert(0, os.path.dirname(COMMAND))

import tarantella_cli  # noqa: E402
from tarantella import settings  # noqa: E402

sys.path.pop(0)


class Options(Case):
    def test_number_of_ranks_in_every_spelling(self):
        for words in (
            ["-n", "2"],
            ["-n=2"],
            ["-n2"],
            ["--n-per-node", "2"],
            ["--n-per-node=2"],
            ["--npernode", "2"],
            ["--devices-per-node=2"],
            ["--ngpus", "2"],
            ["-ngpus", "2"],
            ["-ngpus=2"],
            ["-npernode=2"],
        ):
            with self.subTest(words=words):
                self.assertEqual(len(self.ranks(*words)), 2)

    def test_one_rank_and_a_warning_without_gpus(self):
        out, err = self.run_it("show.py", "GASPI_NRANKS")
        self.assertIn('["1"]', out)
        self.assertEqual(err.count("[TNT_CLI] WARNING: no GPU was found on this host"), 1, err)
        for words in (
            ["--no-gpu"],
            ["--no-gpus"],
            ["-no-gpu"],
            ["-no-gpus"],
            ["-n", "1"],
            ["--npernode=1"],
        ):
            with self.subTest(words=words):
                self.assertEqual(self.run_it(*words, "show.py", "GASPI_NRANKS")[1], "")

    def test_arguments_arrive_byte_for_byte(self):
        odd = ["a b", "", "'\"$HOME`\\", "two\nlines", "-n", "--", "--no-gpu", "*", "\u00e4", "x=y"]
        for line in self.ranks("-n", "2", arguments=odd):
            self.assertEqual(line[1], odd)
        raw = b"\xff\xfe"
        script = self.write(
            "raw.py", "import os, sys\nsys.stdout.buffer.write(os.fsencode(sys.argv[1]))\n"
        )
        done = subprocess.run(
            [sys.executable.encode(), COMMAND.encode(), b"-n", b"1", script.encode(), raw],
            env=environment(),
            stdout=subprocess.PIPE,
            check=True,
            timeout=GUARD,
        )
        self.assertEqual(done.stdout, raw)

    def test_options_end_at_the_first_word_that_is_none(self):
        out, _ = self.run_it("-n", "1", "show.py", "GASPI_RANK", "-n", "7")
        self.assertIn('["-n", "7"]', out)
        out, _ = self.run_it("-n", "1", "--", "show.py", "GASPI_RANK", "--", "x")
        self.assertIn('["--", "x"]', out)

    def test_what_options_tell_the_ranks(self):
        for words, name, value in (
            (["--log-level", "debug"], "TNT_LOG_LEVEL", "DEBUG"),
            (["--log-level=ERROR"], "TNT_LOG_LEVEL", "ERROR"),
            (["--log-on-all-devices"], "TNT_LOG_ON_ALL_DEVICES", "true"),
            (["--output-on-all-devices"], "TNT_OUTPUT_ON_ALL_DEVICES", "true"),
            (["--fusion-threshold", "64"], "TNT_FUSION_THRESHOLD", "64"),
            (["--fusion-threshold=0"], "TNT_FUSION_THRESHOLD", "0"),
            (["-x", "A=1", "B=two words=2"], "A,B", None),
            (["-x=A=1"], "A", "1"),
            (["-x", "HOME=/x", "-x", "C=3"], "HOME,C", None),
            ([], "TF_CPP_MIN_LOG_LEVEL", "3"),
            ([], "TNT_GPUS_PER_NODE,CUDA_VISIBLE_DEVICES", None),
        ):
            expected = {
                "A,B": ["1", "two words=2"],
                "HOME,C": ["/x", "3"],
                "TNT_GPUS_PER_NODE,CUDA_VISIBLE_DEVICES": ["0", "-1"],
            }.get(name, [value])
            with self.subTest(words=words):
                self.assertEqual(self.values("-n", "1", *words, names=name), [expected])

    def test_a_flag_outdoes_the_variable_and_the_users_own_stay(self):
        self.assertEqual(
            self.values(
                "-n",
                "1",
                "--fusion-threshold=8",
                names="TNT_FUSION_THRESHOLD",
                TNT_FUSION_THRESHOLD="64",
            ),
            [["8"]],
        )
        self.assertEqual(
            self.values("-n", "1", names="TNT_FUSION_THRESHOLD", TNT_FUSION_THRESHOLD="64"),
            [["64"]],
        )
        self.assertEqual(
            self.values(
                "-n",
                "2",
                names="TF_NUM_INTRAOP_THREADS,TF_CPP_MIN_LOG_LEVEL",
                TF_NUM_INTRAOP_THREADS="7",
                TF_CPP_MIN_LOG_LEVEL="0",
            ),
            [["7", "0"]] * 2,
        )

    def test_ranks_share_the_cores(self):
        cores = len(os.sched_getaffinity(0))
        share = str(max(1, cores // 2))
        names = "TF_NUM_INTRAOP_THREADS,OMP_NUM_THREADS,TF_NUM_INTEROP_THREADS"
        self.assertEqual(
            self.values("-n", "2", names=names), [[share, share, str(max(2, int(share)))]] * 2
        )
        self.assertEqual(self.values("-n", "1", names=names), [[None, None, None]])

    def test_working_directory(self):
        other = os.path.join(self.place, "other")
        os.mkdir(other)
        shutil.copy(os.path.join(self.directory, "show.py"), other)
        for words in (["--working-directory", other], ["--wd=" + other], ["--wd", "../other"]):
            with self.subTest(words=words):
                out, _ = self.run_it("-n", "1", *words, "show.py", "PWD")
                self.assertEqual(out.count('"{}"'.format(os.path.realpath(other))), 2, out)
        self.assertEqual(os.listdir(self.directory), ["show.py"])

    def test_interpreter(self):
        program = self.write("program", '#!/bin/sh\necho "$0 $1 $GASPI_RANK"\n', 0o755)
        out, _ = self.run_it("-n", "1", "--python-interpreter", "", "program", "a b")
        self.assertEqual(out, "{} a b 0\n".format(program))
        flags = self.write("flags.py", "import sys\nprint(sys.flags.optimize, sys.executable)\n")
        out, _ = self.run_it("-n", "1", "--python-interpreter={} -O".format(sys.executable), flags)
        self.assertEqual(out.split()[0], "1")
        out, _ = self.run_it("-n", "1", flags)
        self.assertEqual(out.split()[1], sys.executable)
        self.write("package_of_test.py", "print('as a module')\n")
        out, _ = self.run_it("-n", "1", "--", "-m", "package_of_test")
        self.assertEqual(out, "as a module\n")

    def test_output_directory_and_tags(self):
        script = self.write(
            "both.py",
            "import os, sys\nrank = os.environ['GASPI_RANK']\nprint('out', rank)\n"
            "print('err', rank, file=sys.stderr)\n",
        )
        out, err = self.run_it("-n", "2", "--output-dir=log", script)
        self.assertEqual((out, err), ("out 0\n", "err 0\n"))
        for rank in range(2):
            for stream in ("out", "err"):
                with open(
                    os.path.join(self.directory, "log", "rank-{}.{}".format(rank, stream)),
                    encoding="utf-8",
                ) as file:
                    self.assertEqual(file.read(), "{} {}\n".format(stream, rank))
        out, err = self.run_it("-n", "2", "--tag-output", script)
        self.assertEqual(sorted(out.splitlines()), ["[rank 0] out 0", "[rank 1] out 1"])
        self.assertEqual(sorted(err.splitlines()), ["[rank 0] err 0", "[rank 1] err 1"])

    def test_pinning(self):
        script = self.write(
            "pinned.py",
            "import os, re\ntext = open('/proc/self/numa_maps').read()\n"
            "policy = re.search(r'(\\S+) stack', text).group(1)\n"
            "print(os.environ['GASPI_BIND'].split(':')[0], policy.split(':')[0])\n",
        )
        with open("/sys/devices/system/node/online", encoding="ascii") as file:
            one = file.read().strip() == "0"
        for words, expected in (
            (["--pin-to-socket"], "numa default"),
            (["--pin-memory-to-socket"], "none bind"),
            (["--pin-to-socket", "--pin-memory-to-socket"], "numa bind"),
        ):
            with self.subTest(words=words):
                out, err = self.run_it("-n", "2", *words, script)
                self.assertEqual(out, (expected + "\n") * 2)
                self.assertEqual(err.count("has one NUMA node"), 1 if one else 0, err)

    def test_without_a_hostfile_ranks_stay_here_in_an_allocation_too(self):
        nodes = self.write("nodes", "far.invalid\nfar.invalid\n")
        more = {"PBS_NODEFILE": nodes, "GASPI_SSH": "/nonexistent"}
        self.assertEqual(self.values("-n", "2", names="PBS_NODEFILE", **more), [[nodes]] * 2)

    def test_dry_run_starts_nothing(self):
        self.write("hosts", "far-a # first\n\nfar-b\n")
        out, _ = self.run_it(
            "--dry-run",
            "--hostfile",
            "hosts",
            "-n",
            "3",
            "-x",
            "A=b c",
            "show.py",
            "x y",
            GASPI_SSH="/nonexistent",
        )
        self.assertIn("host far-a: 2 ranks on the CPU\nhost far-b: 1 rank on the CPU\n", out)
        self.assertIn("environment: A='b c'\n", out)
        self.assertRegex(out, r"command: \S*gaspi_run --hosts far-a:2,far-b:1 .* show\.py 'x y'\n$")

    def test_help_and_version(self):
        help_text, _ = self.run_it("--help")
        self.assertEqual(self.run_it("-h")[0], help_text)
        self.assertTrue(all(len(line) <= 110 for line in help_text.splitlines()))
        for _, _, names in tarantella_cli.OPTIONS:
            self.assertRegex(help_text, r"(?m)(^|[\s(]){}\b".format(re.escape(names[0])))
        self.assertEqual(
            self.run_it("--version")[0], "tarantella {}\n".format(tarantella_cli.VERSION)
        )
        with open(
            os.path.join(ROOT, "python", "tarantella", "__init__.py"), encoding="utf-8"
        ) as file:
            self.assertIn('__version__ = "{}"\n'.format(tarantella_cli.VERSION), file.read())

    def test_it_starts_in_a_tenth_of_a_second(self):
        def shortest(*words):
            times = []
            for _ in range(10):
                begin = time.monotonic()
                self.run_it(*words)
                times.append(time.monotonic() - begin)
            return min(times)

        self.assertLess(shortest("--version"), 0.1)
        self.assertLess(shortest("--dry-run", "--no-gpu", "show.py"), 0.1)


class Mistakes(Case):
    def test_each_is_told_with_its_remedy_and_status_2(self):
        self.write("hosts", "far-a\nfar-b\n")
        self.write("twice", "a\nb\n# b\nA\n")
        self.write("empty", "# nothing\n\n")
        self.write("slots", "a slots=2\n")
        self.write("plain.sh", "#!/bin/sh\n")
        for words, text in (
            (["--hostflie", "x"], "did you mean --hostfile?"),
            (["--no-gup", "show.py"], "did you mean --no-gpu"),
            (["-n"], "-n needs a value"),
            (["-n", "--", "show.py"], "-n needs a value"),
            (["-n", "x", "show.py"], "-n x: not a whole number"),
            (["-n", "0", "show.py"], "at least 1"),
            (["-n", "1", "-n", "2", "show.py"], "given twice"),
            (["--no-gpu=1", "show.py"], "takes no value"),
            (["--n-per-node=-3", "show.py"], "at least 1"),
            (["--hostfile", "missing", "show.py"], "host file missing: No such file"),
            (["--hostfile", "empty", "show.py"], "names no host; write one host in each line"),
            (["--hostfile", "twice", "show.py"], "lines 1 and 4 both name A"),
            (["--hostfile", "twice", "show.py"], "--n-per-node"),
            (["--hostfile", "slots", "show.py"], "line 1: 'a slots=2' is no host name"),
            (["--hostfile", "hosts", "-n", "5", "--n-per-node=2", "show.py"], "at most 4"),
            (["--log-level", "LOUD", "show.py"], "use DEBUG, INFO, WARNING, ERROR"),
            (["--fusion-threshold", "much", "show.py"], "give kilobytes"),
            (["--fusion-threshold=-1", "show.py"], "give kilobytes"),
            (["--on-failure", "hope", "show.py"], "use end or continue"),
            (["--min-ranks", "2", "show.py"], "needs --on-failure=continue"),
            (
                ["-n", "2", "--on-failure=continue", "--min-ranks=3", "show.py"],
                "more than the 2 ranks",
            ),
            (["-x", "show.py"], "-x needs NAME=VALUE, not 'show.py'"),
            (["--wd", "/does/not/exist", "show.py"], "there is no such directory"),
            (["missing.py"], "there is no script missing.py"),
            ([], "there is no SCRIPT"),
            (["-"], "standard input"),
            (["--python-interpreter", "python-that-is-not", "show.py"], "no program of that name"),
            (["--python-interpreter", "'", "show.py"], "No closing quotation"),
            (["--python-interpreter=", "plain.sh"], "chmod +x"),
            (["--force", "show.py"], "--force is for --cleanup"),
            (["--cleanup", "--", "show.py", "x"], "without its arguments"),
        ):
            with self.subTest(words=words):
                out, err = self.run_it(*words, status=2)
                self.assertIn("[TNT_CLI] ERROR: ", err)
                self.assertIn(text, err)
                self.assertEqual(out, "")

    def test_every_option_refuses_a_wrong_value(self):
        self.write("empty", "")
        wrong = {
            "ranks": "many",
            "hostfile": "empty",
            "per_node": "0",
            "log_level": "LOUD",
            "output_dir": "show.py/log",
            "directory": "show.py",
            "threshold": "-1",
            "interpreter": "python-that-is-not",
            "on_failure": "hope",
            "min_ranks": "none",
        }
        kinds = {key: kind for key, kind, _ in tarantella_cli.OPTIONS}
        with_value = {key for key, kind in kinds.items() if kind == tarantella_cli.VALUE}
        # A new option needs a line here.
        self.assertEqual(set(wrong), with_value)
        for key, kind, names in tarantella_cli.OPTIONS:
            for name in names:
                words = {
                    tarantella_cli.FLAG: [name + "=1"],
                    tarantella_cli.VALUE: [name, wrong.get(key)],
                    tarantella_cli.WORDS: [name, "1=2"],
                }[kind]
                if key == "min_ranks":
                    words.append("--on-failure=continue")
                with self.subTest(words=words):
                    out, err = self.run_it(*words, "show.py", "x", status=2)
                    self.assertIn("[TNT_CLI] ERROR: ", err)
                    flag = name + " takes no value"
                    text = flag if kind == tarantella_cli.FLAG else names[0]
                    self.assertIn("host file" if key == "hostfile" else text, err)
                    self.assertEqual(out, "")

    def test_every_variable_refuses_a_wrong_value(self):
        script = self.write("imports.py", "import tarantella\n")
        for variable in settings.VARIABLES:
            name, more = variable.name, {"PYTHONPATH": os.path.dirname(COMMAND)}
            # No variable takes it.
            more.update({"TNT_FRONTEND": "none", name: "-wrong-"})
            with self.subTest(name=name):
                process = self.start("-n", "2", "--no-gpu", script, **more)
                out, err = process.communicate(timeout=GUARD)
                # What the command does not look at ends the import.
                self.assertIn(process.returncode, (1, 2), err)
                told = name in err or name[len("TNT_") :].lower().replace("_", "-") in err
                self.assertTrue(told and "-wrong-" in err.lower(), err)
                self.assertEqual(out, "")

    def test_wrong_variables(self):
        for name, value in (
            ("TNT_LOG_LEVEL", "LOUD"),
            ("TNT_LOG_ON_ALL_DEVICES", "maybe"),
            ("TNT_OUTPUT_ON_ALL_DEVICES", "2"),
            ("TNT_GPUS_PER_NODE", "many"),
            ("TNT_ON_FAILURE", "hope"),
        ):
            with self.subTest(name=name):
                _, err = self.run_it("show.py", "x", status=2, **{name: value})
                self.assertTrue(name in err or "--on-failure" in err, err)

    def test_a_tool_that_is_not_there(self):
        _, err = self.run_it("--no-gpu", "show.py", status=2, GASPI_TOOLS="/nonexistent")
        self.assertIn("gaspi_run is not in GASPI_TOOLS=/nonexistent", err)


class Endings(Case):
    def failing(self, statement):
        return self.write(
            "fails.py",
            "import os, sys, signal, time\nif os.environ['GASPI_RANK'] == '1':\n    {}\n"
            "time.sleep(float(sys.argv[1]))\n".format(statement),
        )

    def test_the_first_failure_decides(self):
        for statement, status in (
            ("sys.exit(3)", 3),
            ("raise RuntimeError('as planned')", 1),
            ("os.kill(os.getpid(), 9)", 137),
            ("os.abort()", 134),
        ):
            with self.subTest(statement=statement):
                begin = time.monotonic()
                _, err = self.run_it("-n", "3", self.failing(statement), "1000", status=status)
                self.assertLess(time.monotonic() - begin, 10)
                self.assertRegex(err, r"gaspi_run: rank 1 \(pid \d+, host \S+\) (ended|was killed)")
                self.assertRegex(err, r"rank 1 failed first, \d+\.\d s after the start")
        self.assertIn("2 ranks were ended", err)

    def test_last_lines_are_repeated(self):
        script = self.failing(
            "[print('line', n, file=sys.stderr) for n in range(50)]; raise RuntimeError('as"
            " planned')"
        )
        _, err = self.run_it("-n", "2", script, "1000", status=1)
        end = err[err.index("failed first") :]
        self.assertEqual(end.count("\n  | "), 20)
        self.assertIn("  | RuntimeError: as planned\n", end)

    def test_a_job_that_may_lose_ranks(self):
        script = self.failing("os.kill(os.getpid(), 9)")
        _, err = self.run_it("-n", "3", "--on-failure=continue", script, "0.5")
        self.assertIn("warning: 2 of 3 ranks ended with status 0", err)
        _, err = self.run_it(
            "-n", "3", "--on-failure", "continue", "--min-ranks", "3", script, "1000", status=137
        )
        self.assertIn("ending the job (--min-ranks 3)", err)
        out, _ = self.run_it(
            "-n",
            "3",
            "--on-failure=continue",
            "--min-ranks=2",
            "show.py",
            "TNT_ON_FAILURE,TNT_MIN_RANKS",
        )
        self.assertEqual(out.count('["continue", "2"]'), 3)

    def test_signals_end_everything(self):
        # An interrupt that comes just before Python sleeps is seen behind the sleep.
        alive = self.write(
            "alive.py",
            "import os, time\nprint('pid', os.getpid(), flush=True)\n"
            "while True:\n    time.sleep(0.05)\n",
        )
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            with self.subTest(signal=number):
                process = self.start("-n", "2", alive)
                pids = [int(process.stdout.readline().split()[1]) for _ in range(2)]
                process.send_signal(number)
                process.communicate(timeout=GUARD)
                self.assertEqual(process.returncode, status)
                for pid in pids:
                    self.assertFalse(os.path.exists("/proc/{}".format(pid)))

    def test_standard_input_is_that_of_rank_0(self):
        script = self.write(
            "cat.py", "import os, sys\nprint(os.environ['GASPI_RANK'], repr(sys.stdin.read()))\n"
        )
        done = subprocess.run(
            [sys.executable, COMMAND, "-n", "2", script],
            input="hello",
            env=environment(),
            text=True,
            stdout=subprocess.PIPE,
            check=True,
            timeout=GUARD,
        )
        self.assertEqual(sorted(done.stdout.splitlines()), ["0 'hello'", "1 ''"])


class Cleanup(Case):
    def test_jobs_of_the_command_and_no_others(self):
        alive = "import os, time\nprint('here', flush=True)\ntime.sleep(1000)\n"
        first, second = self.write("first of.py", alive), self.write("second.py", alive)
        jobs = [self.start("-n", "2", first), self.start("-n", "1", second)]
        for process, count in zip(jobs, (2, 1)):
            for _ in range(count):
                self.assertEqual(process.stdout.readline(), "here\n")
        out, _ = self.run_it("--cleanup", "--dry-run", "--", "first of.py")
        self.assertIn("--with 'TNT_SCRIPT={}'".format(first), out)
        out, _ = self.run_it("--cleanup", "--", "first of.py")
        # gaspi_run may end the second one before.
        self.assertEqual(len(re.findall("ended by SIGTERM|had ended already", out)), 2, out)
        self.assertIn("ended by SIGTERM", out)
        jobs[0].communicate(timeout=GUARD)
        self.assertEqual(jobs[0].returncode, 143)
        self.assertIsNone(jobs[1].poll())
        out, _ = self.run_it("--cleanup", "--force", "--", "second.py")
        self.assertEqual(out.count("killed by SIGKILL"), 1, out)
        jobs[1].communicate(timeout=GUARD)
        self.assertEqual(jobs[1].returncode, 137)


if __name__ == "__main__":
    unittest.main()
