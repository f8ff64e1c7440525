"""All jobs of this directory in one process, since importing TensorFlow takes long; arguments name
some.

    tarantella -n 2 --no-gpu all_jobs.py job_data job_saving.checkpoint

A name behind a dot is a part of the names of cases.
"""

import functools
import glob
import importlib
import os
import sys
import traceback

import cases


def isolated(function, job):
    """The case with what others may have changed set back, and named after its job."""

    @functools.wraps(function)
    def run():
        cases.keras.backend.set_floatx("float32")
        try:
            function()
        except Exception:
            # Told at once: the others may be waiting for this rank.
            sys.stderr.write(
                "rank {}: {}\n{}".format(cases.RANK, run.__name__, traceback.format_exc())
            )
            sys.stderr.flush()
            raise

    run.__name__ = "{}.{}".format(job, function.__name__)
    return run


def main():
    """Registers the cases of the jobs, and runs them."""
    here = os.path.dirname(os.path.abspath(__file__))
    jobs = sorted(os.path.basename(path)[:-3] for path in glob.glob(os.path.join(here, "job_*.py")))
    chosen = sys.argv[1:] or jobs
    unknown = [name for name in chosen if name.partition(".")[0] not in jobs]
    if unknown or not jobs:
        sys.exit("there is no job {}; there are {}".format(", ".join(unknown), ", ".join(jobs)))
    del sys.argv[1:]
    collected = []
    for word in chosen:
        name, _, part = word.partition(".")
        # Jobs may import each other, so cases are told apart by where they stand.
        importlib.import_module(name)
        found = [each for each in cases._cases if each.__module__ == name and part in each.__name__]
        if not found:
            sys.exit("no case of {} has {} in its name".format(name, part))
        collected += [isolated(each, name) for each in found]
    cases._cases[:] = collected
    cases.run()


main()
