"""Loses a rank within fit and goes on; the weights have to be those of plain Keras. `failures.py`
starts it.

Arguments: the rank that is killed, and after which step.
"""

import os
import signal
import sys
from typing import Any

import cases
from cases import close, dataset, keras, np, same_bits, tnt, with_weights

RANK = tnt.get_rank()
VICTIM, STEP = int(sys.argv[1]), int(sys.argv[2])


class Die(keras.callbacks.Callback):
    """Kills one rank after a step."""

    steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A step."""
        self.steps += 1
        if RANK == VICTIM and self.steps == STEP:
            os.kill(os.getpid(), signal.SIGKILL)


def build() -> Any:
    """A small model in f64."""
    keras.backend.set_floatx("float64")
    return with_weights(
        keras.Sequential(
            [keras.Input((8,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
        )
    )


def main() -> None:
    """Trains plainly and on all ranks."""
    # What cases.py has made fixed the type of all layers of Keras 3.
    keras.backend.clear_session()
    generator = np.random.default_rng(3)
    x, y = generator.normal(size=(80, 8)), generator.normal(size=(80, 1))
    for optimizer in (
        lambda: keras.optimizers.SGD(0.05, momentum=0.9),
        lambda: keras.optimizers.Adam(0.01),
    ):
        plain, model = build(), tnt.Model(build())
        for each in (plain, model):
            each.compile(optimizer(), "mse")
        plain.fit(dataset(x, y, batch=8), epochs=3, verbose=0)
        die = Die()
        history = model.fit(
            dataset(x, y, batch=8),
            epochs=3,
            verbose=0,
            callbacks=[die],
            validation_data=dataset(x, y, batch=8),
        )
        close(model.get_weights(), plain.get_weights(), 1e-10)
        close(
            [history.history["val_loss"][-1]],
            [plain.evaluate(dataset(x, y, batch=8), verbose=0)],
            1e-10,
        )
        assert die.steps == 30, die.steps
        same_bits(model.get_weights())
    assert tnt.get_size() == cases.SIZE - 1, tnt.get_size()
    assert tnt.is_master_rank() == (tnt.get_rank() == 0)
    sys.stderr.write("\n@done rank {} 0\n".format(tnt.get_rank()))


main()
