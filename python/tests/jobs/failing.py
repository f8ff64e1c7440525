"""A job that fails in the way that its first argument says; `failures.py` starts it and looks at
what happens.
"""

import atexit
import os
import resource
import signal
import sys
import threading
import time
from typing import Any

if sys.argv[1] == "exits":
    # Before the layer is imported, so it runs after the rank has left the job: a process whose end
    # takes long.
    atexit.register(lambda: time.sleep(2 if tnt.get_rank() == FAILING else 0))

import cases  # noqa: E402
from cases import RANK, SIZE, close, keras, np, same_bits, tf, tnt, with_weights  # noqa: E402

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
        elif WAY in ("stopped", "stopped_sparse", "continued"):
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


def own_loop(traced: bool) -> None:
    """Steps without fit, before one of which the last rank stops."""
    model, optimizer = build(), tnt.optimizers.Optimizer(keras.optimizers.SGD(0.01))
    variables = model.trainable_variables
    if hasattr(optimizer, "build"):
        optimizer.build(variables)

    def step() -> None:
        optimizer.apply_gradients([(tf.zeros_like(each), each) for each in variables])

    call = tf.function(step) if traced else step
    for number in range(100000):
        if number == 5 and RANK == FAILING:
            os.kill(os.getpid(), signal.SIGSTOP)
        if number == 5 and traced:
            # This rank alone, while the other one stays stopped.
            threading.Timer(3, interrupt_self).start()
        try:
            call()
        except (RuntimeError, tf.errors.CancelledError):
            # TensorFlow may put its own error in the place of KeyboardInterrupt.
            if traced:
                say("KeyboardInterrupt")
            raise


def interrupt_self() -> None:
    """As Ctrl-C does."""
    say("interrupt")
    os.kill(os.getpid(), signal.SIGINT)


def continued() -> None:
    """A fit of some steps, in which the last rank is stopped for a while; as plain Keras trains."""
    plain, model = build(), tnt.Model(build())
    for each, callbacks in ((plain, []), (model, [Fail()])):
        each.compile("sgd", "mse")
        if each is model:
            say("pid {}".format(os.getpid()))
        each.fit(data(8 * 20), steps_per_epoch=20, verbose=0, callbacks=callbacks)
    close(model.get_weights(), plain.get_weights(), 1e-5)
    same_bits(model.get_weights())
    say("done")


class Deadly(keras.layers.Dense):
    """Kills the first rank while its weights are written for the second time."""

    written = 0

    def save_own_variables(self, store: Any) -> None:
        """Keras writes."""
        super().save_own_variables(store)
        self.written += 1
        if self.written == 2 and RANK == 0:
            say("begin")
            os.kill(os.getpid(), signal.SIGKILL)


def saving(path: str, in_fit: bool) -> None:
    """Saves twice: directly, or by a callback of fit."""
    model = tnt.Model(with_weights(keras.Sequential([keras.Input((8,)), Deadly(1)])))
    model.compile("sgd", "mse")
    if in_fit:
        checkpoint = keras.callbacks.ModelCheckpoint(path)
        model.fit(np.ones((8, 8)), np.ones((8, 1)), epochs=3, verbose=0, callbacks=[checkpoint])
    model.save(path)
    model.save(path)


def full_disk(path: str, in_fit: bool) -> None:
    """Saves, and again when the first rank has no room for a file: directly, or by a callback."""
    model = tnt.Model(build())
    model.compile("sgd", "mse")
    x, y = np.ones((8, 8)), np.ones((8, 1))
    model.fit(x, y, verbose=0)
    model.save(path)
    if RANK == 0:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    say("begin")
    if in_fit:
        checkpoint = keras.callbacks.ModelCheckpoint(path)
        model.fit(x, y, epochs=100000, verbose=0, callbacks=[checkpoint])
    model.save(path)


def train() -> None:
    """Trains until it fails."""
    if WAY in ("own_loop", "traced_loop"):
        own_loop(WAY == "traced_loop")
        return
    if WAY == "continued":
        continued()
        return
    if WAY in ("saving", "saving_in_fit"):
        saving(sys.argv[2], WAY == "saving_in_fit")
        return
    if WAY in ("full_disk", "full_disk_in_fit"):
        full_disk(sys.argv[2], WAY == "full_disk_in_fit")
        return
    if WAY == "stops_alone":
        plant_stop_alone()
    model = tnt.Model(build())
    model.compile("sgd", "mse")
    if WAY == "fit_on_one_rank" and RANK == FAILING:
        time.sleep(3600)
    model.fit(data(8 * 100000), steps_per_epoch=100000, verbose=0, callbacks=[Fail()])


def main() -> None:
    """Says what ends the training."""
    try:
        train()
    except tnt.RankFailure as failure:
        say("RankFailure of {}".format(failure.rank))
        raise
    except tnt.WaitTimeout:
        say("WaitTimeout")
        raise
    except OSError:
        say("OSError")
        raise
    except KeyboardInterrupt:
        say("KeyboardInterrupt")
        raise


main()
