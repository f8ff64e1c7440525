"""Runs the unit tests, or those of failures.py or runs.py, and says what came of them in the line
that xtask reads.

    run_unit.py [--failures|--runs] [PART OF A NAME...]

chooses tests by parts of their names (`test_command.Options.test_pinning`).
"""

import os
import signal
import sys
import unittest


def flattened(suite):
    """All tests of a suite."""
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from flattened(each)
        else:
            yield each


def main(words):
    """Runs the tests; the exit status."""
    # A shell has what it starts in the background ignore interrupts, nohup hang-ups, and all that
    # this starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    here = os.path.dirname(os.path.abspath(__file__))
    folder, pattern = os.path.join(here, "unit"), "test*.py"
    if words[:1] in (["--failures"], ["--runs"]):
        folder, pattern, words = here, words[0][2:] + ".py", words[1:]
    found = list(flattened(unittest.defaultTestLoader.discover(folder, pattern)))
    chosen = [test for test in found if not words or any(word in test.id() for word in words)]
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=1).run(unittest.TestSuite(chosen))
    failed = len({test.id() for test, _ in result.failures + result.errors})
    # A missing prerequisite is a failure, never a test that is left out.
    failed += len(result.skipped)
    word = "FAILED" if failed else "ok"
    print(
        "test result: {}. {} passed; {} failed".format(word, max(0, len(chosen) - failed), failed),
        flush=True,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
