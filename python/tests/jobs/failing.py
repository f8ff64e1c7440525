"""A job that fails in the way that its first argument says; `failures.py` starts it and looks at
what happens.
"""

import atexit
import os
import signal
import sys
import time
from typing import Any

if sys.argv[1] == "exits":
    # Before the layer is imported, so it runs after the rank has left the job: a process whose end
    # takes long.
    atexit.register(lambda: time.sleep(2 if tnt.get_rank() == FAILING else 0))

import cases  # noqa: E402
from cases import RANK, SIZE, keras, np, tnt, with_weights  # noqa: E402

WAY = sys.argv[1]
FAILING = SIZE - 1


def say(text: str) -> None:
    """A line that the test reads: what happened, and when."""
    sys.stderr.write("\n@{} rank {} {:.3f}\n".format(text, RANK, time.time()))
    sys.stderr.flush()


class Fail(keras.callbacks.Callback):
    """Does it on the last rank after some steps."""

    steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A step."""
        self.steps += 1
        if RANK != FAILING or self.steps != 5:
            return
        say("begin")
        if WAY == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        elif WAY == "leaves":
            sys.exit(0)
        elif WAY == "exits":
            sys.exit(7)
        elif WAY == "raises":
            raise ValueError("planted in a callback")
        elif WAY in ("stopped", "stopped_sparse"):
            os.kill(os.getpid(), signal.SIGSTOP)
        elif WAY == "stops_alone":
            self.model.stop_training = True


def plant_stop_alone() -> None:
    """A wish to stop is obeyed at once, and told to nobody."""
    from tarantella.keras import model, step

    step.Control.wish = lambda self, stop: None
    model.Distributed.stop_training = property(
        lambda self: model.state_of(self).own_wish, model.Distributed.stop_training.fset
    )


def data(number: int) -> Any:
    """Batches, of which the pipeline of the last rank raises in one."""
    x = np.ones((number, 8))

    def batches() -> Any:
        for begin in range(0, number, 8):
            if WAY == "pipeline" and RANK == FAILING and begin == 40:
                say("begin")
                raise ValueError("planted in the data")
            yield x[begin : begin + 8], x[begin : begin + 8, :1]

    return batches()


def build() -> Any:
    """A small model; with gradients that are gathered if they are to be waited for."""
    layers = keras.layers
    stack = [keras.Input((8,)), layers.Dense(4), layers.Dense(1)]
    if WAY == "stopped_sparse":
        stack = [keras.Input((8,)), layers.Embedding(2, 4), layers.Flatten(), layers.Dense(1)]
    return with_weights(keras.Sequential(stack))


def main() -> None:
    """Trains until it fails."""
    if WAY == "stops_alone":
        plant_stop_alone()
    model = tnt.Model(build())
    model.compile("sgd", "mse")
    if WAY == "fit_on_one_rank" and RANK == FAILING:
        time.sleep(3600)
    try:
        model.fit(data(8 * 100000), steps_per_epoch=100000, verbose=0, callbacks=[Fail()])
    except tnt.RankFailure as failure:
        say("RankFailure of {}".format(failure.rank))
        raise
    except tnt.WaitTimeout:
        say("WaitTimeout")
        raise
    except KeyboardInterrupt:
        say("KeyboardInterrupt")
        raise


main()
