"""Whether the installed wheel works where there is no TensorFlow, no compiler and no checkout."""

import os
import subprocess
import sys
import time

BIN = os.path.dirname(sys.executable)
GUARD = 60
PROGRAM = """\
import numpy, sys
import tarantella as tnt
total = tnt.allreduce(numpy.arange(3.0) * (tnt.get_rank() + 1))
assert total.tolist() == [0.0, 3.0, 6.0], total
assert "tensorflow" not in sys.modules
try:
    tnt.Model
except ImportError as error:
    assert "pip install" in str(error), error
else:
    raise AssertionError("a model without TensorFlow")
if tnt.is_master_rank():
    print("ranks", tnt.get_size())
"""


def output(*words):
    """What a program prints."""
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True, timeout=GUARD, text=True)
    return done.stdout


def duration(*words):
    """How long a program takes, in seconds."""
    begin = time.monotonic()
    output(*words)
    return time.monotonic() - begin


def files():
    """All files of the installation, with their times."""
    import tarantella

    found = {}
    for folder, _, names in os.walk(os.path.dirname(tarantella.__file__)):
        if not folder.endswith("__pycache__"):
            found.update(
                (os.path.join(folder, name), os.stat(os.path.join(folder, name)).st_mtime)
                for name in names
            )
    return found


def main():
    """Checks what a user would meet first."""
    assert output(os.path.join(BIN, "tarantella"), "-n", "2", "--", "-c", PROGRAM) == "ranks 2\n"
    assert (
        output(sys.executable, "-c", "import tarantella as t; print(t.get_rank(), t.get_size())")
        == "0 1\n"
    )
    took = min(duration(sys.executable, "-c", "import tarantella") for _ in range(5))
    assert took < 1.0, "the import takes {:.2f} s".format(took)
    version = output(os.path.join(BIN, "tarantella"), "--version").split()[1]
    for tool in ("gaspi_run", "gaspi-bench", "gaspi_cleanup"):
        assert output(os.path.join(BIN, tool), "--version").split()[1] == version, tool
    before = files()
    output(os.path.join(BIN, "tarantella"), "-n", "2", "--", "-c", PROGRAM)
    assert files() == before, "the import has written files"
    print("installed: works")


main()
