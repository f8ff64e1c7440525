"""What jobs do from one run to the next: seeds, equal bits, restarts with other numbers of ranks.

TensorFlow is imported once, in this process, and every rank of every run is a fork of it, which
joins its job by GASPI_RANK and GASPI_NRANKS. This process itself imports no tarantella and has no
context of TensorFlow, so a run is what it would be in processes of its own.
"""

import hashlib
import os
import pickle
import shutil
import sys
import tempfile
import threading
import time
import traceback
import unittest
from typing import Any, Callable, Dict, List

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "jobs"))
GUARD = 300
_numbers = iter(range(1 << 30))
tf: Any = None
keras: Any = None


def setUpModule() -> None:
    """Not when only names are looked at."""
    global tf, keras
    import tensorflow

    tf, keras = tensorflow, tensorflow.keras
    # TensorFlow loads Keras when it is first used.
    assert keras.Sequential


def run(size: int, program: Callable[..., Any], *arguments: Any, **environment: str) -> List[Any]:
    """What a program gives on each rank of a job with these variables."""
    environment["GASPI_JOB_ID"] = "runs-{}-{}".format(os.getpid(), next(_numbers))
    environment["GASPI_NRANKS"] = str(size)
    environment.setdefault("TNT_TIMEOUT", "120")
    children = []
    for rank in range(size):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _be_rank(writing, dict(environment, GASPI_RANK=str(rank)), program, arguments)
        os.close(writing)
        children.append((child, reading))
    guard = threading.Timer(GUARD, _end, [[child for child, _ in children]])
    guard.start()
    results = []
    for child, reading in children:
        with os.fdopen(reading, "rb") as file:
            told = file.read()
        status = os.waitpid(child, 0)[1]
        results.append((status, told))
    guard.cancel()
    for rank, (status, told) in enumerate(results):
        assert status == 0 and told, "rank {} of {} ended with status {}:\n{}".format(
            rank, size, status, told.decode(errors="replace")[-3000:]
        )
    return [pickle.loads(told) for _, told in results]


def _end(children: List[int]) -> None:
    for child in children:
        os.kill(child, 9)


def _be_rank(
    writing: int, variables: Dict[str, str], program: Callable[..., Any], arguments: Any
) -> None:
    """Runs the program, tells what it gives, and ends this process."""
    status = 1
    with os.fdopen(writing, "wb") as file:
        try:
            os.environ.update(variables)
            import tarantella as tnt

            result = pickle.dumps(program(*arguments))
            tnt.barrier()
            tnt.ranks.leave()
            file.write(result)
            status = 0
        except BaseException:
            file.write(traceback.format_exc().encode())
    os._exit(status)


# ==== Seeds ====


def order() -> List[int]:
    """In which order this rank shuffles without a seed of its own."""
    numbers = tf.data.Dataset.range(1000).shuffle(1000)
    return [int(number) for number in numbers]


class Seeds(unittest.TestCase):
    """TNT_SEED: what an unseeded shuffle does."""

    def orders(self, size: int = 2, **environment: str) -> List[List[int]]:
        """Those of all ranks."""
        found = run(size, order, **environment)
        self.assertEqual(sorted(found[0]), list(range(1000)))
        return found

    def test_a_number_gives_one_order_in_all_runs(self) -> None:
        default = self.orders()
        self.assertEqual(default[0], default[1])
        self.assertEqual(self.orders(TNT_SEED="42"), default)
        # A job of one rank has the same, so that its numbers can be compared.
        self.assertEqual(self.orders(1), default[:1])
        seven = self.orders(TNT_SEED="7")
        self.assertEqual(seven[0], seven[1])
        self.assertNotEqual(seven, default)
        self.assertEqual(self.orders(TNT_SEED="7"), seven)

    def test_random_gives_one_order_for_each_run(self) -> None:
        runs = [self.orders(TNT_SEED="random") for _ in range(3)]
        for orders in runs:
            self.assertEqual(orders[0], orders[1])
        self.assertEqual(len({tuple(orders[0]) for orders in runs}), 3)

    def test_none_leaves_every_rank_its_own(self) -> None:
        runs = [self.orders(TNT_SEED="none") for _ in range(2)]
        self.assertEqual(len({tuple(each) for orders in runs for each in orders}), 4)


# ==== Equal bits ====


def whole_training(delays: int) -> str:
    """A digest of losses, metrics and weights of LeNet-5, whose ranks are late at random."""
    import cases

    tf.config.experimental.enable_op_determinism()
    late = np.random.default_rng([delays, cases.RANK])

    class Late(keras.callbacks.Callback):
        """Has another rank come first in each step."""

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            """A step."""
            time.sleep(late.uniform(0, 0.004))

    model = cases.tnt.Model(cases.lenet("float32"))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    x, y = cases.digits(400, "float32")
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(400).batch(50)
    history = model.fit(
        data, epochs=3, verbose=0, callbacks=[Late()], validation_data=(x[:90], y[:90])
    ).history
    digest = hashlib.sha256()
    for name in sorted(history):
        digest.update(np.asarray(history[name], np.float64).tobytes())
    for weight in model.get_weights():
        digest.update(np.ascontiguousarray(weight).tobytes())
    return digest.hexdigest()


class Bits(unittest.TestCase):
    """GASPI_COLL_MODE=stable."""

    def digests(self, delays: int, **environment: str) -> List[str]:
        """Those of the ranks of a run."""
        environment.update(GASPI_COLL_MODE="stable", TF_DETERMINISTIC_OPS="1")
        return run(2, whole_training, delays, **environment)

    def test_two_trainings_have_equal_bits(self) -> None:
        found = self.digests(1)
        self.assertEqual(found[0], found[1])
        self.assertEqual(self.digests(2), found)
        # The order of the samples shows in them.
        self.assertNotEqual(self.digests(1, TNT_SEED="7"), found)


# ==== Restarts ====

EPOCHS = 4


def backed_up(folder: str, stop: bool, save_freq: Any = "epoch", wrap: bool = True) -> Any:
    """A training with BackupAndRestore: until a stop in the middle, or to the end. Steps and
    weights.
    """
    import cases
    from tarantella.keras import weights

    keras.backend.set_floatx("float64")
    cases.keras.backend.clear_session()
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(5, activation="tanh"), layers.Dense(1)]
    )
    # What a restart begins with does not count.
    cases.with_weights(model, 1 if stop else 9)
    if wrap:
        model = cases.tnt.Model(model)

    class Count(keras.callbacks.Callback):
        """Counts steps; interrupts the third epoch."""

        steps, epochs = 0, 0

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            """An epoch."""
            self.epochs += 1

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            """A step."""
            self.steps += 1
            if stop and self.epochs == 2 and batch == 4:
                raise KeyboardInterrupt

    model.compile(keras.optimizers.Adam(0.01), "mse")
    generator = np.random.default_rng(3)
    x, y = generator.normal(size=(75, 8)), generator.normal(size=(75, 1))
    count = Count()
    backup = keras.callbacks.BackupAndRestore(os.path.join(folder, "backup"), save_freq=save_freq)
    try:
        model.fit(
            cases.dataset(x, y, batch=10),
            epochs=EPOCHS,
            verbose=0,
            callbacks=[backup, count],
        )
    except KeyboardInterrupt:
        assert stop
    optimizer = [weights.array_of(each) for each in weights.optimizer_variables(model.optimizer)]
    return count.steps, model.get_weights(), optimizer


class Restarts(unittest.TestCase):
    """BackupAndRestore, restarted with another number of ranks."""

    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="tarantella-test-")
        self.addCleanup(shutil.rmtree, self.folder)

    def continued(self, sizes: Any, save_freq: Any = "epoch", wrap: bool = True) -> Any:
        """What a run leaves whose former run had another number of ranks."""
        folder = tempfile.mkdtemp(dir=self.folder)
        run(sizes[0], backed_up, folder, True, save_freq, wrap)
        self.assertTrue(os.listdir(folder))
        return run(sizes[1], backed_up, folder, False, save_freq, wrap)

    def test_another_number_of_ranks_goes_on_as_one(self) -> None:
        # Behind an epoch, and within one.
        for save_freq, pairs in (("epoch", [(2, 3), (3, 2)]), (3, [(2, 3), (3, 1), (1, 2)])):
            plain = self.continued((1, 1), save_freq, False)[0]
            for sizes in pairs:
                with self.subTest(save_freq=save_freq, sizes=sizes):
                    for steps, weights, optimizer in self.continued(sizes, save_freq):
                        self.assertEqual(steps, plain[0])
                        for mine, reference in zip(weights + optimizer, plain[1] + plain[2]):
                            np.testing.assert_allclose(mine, reference, rtol=0, atol=1e-12)


if __name__ == "__main__":
    unittest.main()
