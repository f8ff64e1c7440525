"""What the tests of the command `tarantella` share: real processes, the real gaspi_run, no
TensorFlow.

GASPI_TOOLS, or PATH, has gaspi_run and gaspi_cleanup; without them every test fails.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
COMMAND = os.path.join(ROOT, "python", "tarantella_cli.py")
GUARD = 60

SHOW = """\
import json, os, sys
values = [os.environ.get(name) for name in sys.argv[1].split(",")]
print(json.dumps([int(os.environ["GASPI_RANK"]), values, sys.argv[2:], os.getcwd()]))
"""


def environment(**more):
    """That of this process without what a job or a user sets."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not re.match(r"TNT_|TF_|OMP_|CUDA_|GASPI_(RANK|NRANKS|JOB|MEETING|SOCKET|BIND)", name)
    }
    kept.update(more)
    return {name: value for name, value in kept.items() if value is not None}


class Case(unittest.TestCase):
    """A directory of its own, in which the command runs."""

    def setUp(self):
        self.place = tempfile.mkdtemp(prefix="tarantella-test-")
        self.addCleanup(shutil.rmtree, self.place)
        self.directory = os.path.join(self.place, "work")
        os.mkdir(self.directory)
        self.write("show.py", SHOW)

    def write(self, name, text, mode=0o644):
        path = os.path.join(self.directory, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def start(self, *words, directory=None, **more):
        process = subprocess.Popen(
            [sys.executable, COMMAND] + list(words),
            cwd=directory or self.directory,
            env=environment(**more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

        def end():
            if process.poll() is None:
                process.kill()
                process.communicate()

        self.addCleanup(end)
        return process

    def run_it(self, *words, status=0, directory=None, **more):
        """Output and errors of the command, which ends with this status."""
        process = self.start(*words, directory=directory, **more)
        try:
            out, err = process.communicate(timeout=GUARD)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            self.fail("did not end\n{}\n{}".format(out, err))
        self.assertEqual(process.returncode, status, "{}\n{}\n{}".format(words, out, err))
        return out, err

    def ranks(self, *words, names="GASPI_RANK", arguments=(), **more):
        """What each rank says of these variables, by rank."""
        import json

        out, err = self.run_it(*words, "--", "show.py", names, *arguments, **more)
        self.assertNotIn("Traceback", err)
        lines = sorted(json.loads(line) for line in out.splitlines())
        self.assertEqual([line[0] for line in lines], list(range(len(lines))))
        return [line[1:] for line in lines]

    def values(self, *words, names, **more):
        return [line[0] for line in self.ranks(*words, names=names, **more)]
