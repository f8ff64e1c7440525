"""Callbacks: where each runs, that values are those of all ranks, that lists may differ, that stops
are agreed on.
"""

import contextlib
import csv
import io
import os
import shutil
import tempfile

from cases import KERAS3, RANK, SIZE, case, dataset, digits, keras, run, same_bits
from expect import raises

import h5py
import numpy as np
import tarantella as tnt
from tarantella import collectives, settings

MASTER = RANK == 0
callbacks = keras.callbacks


def made():
    keras.backend.set_floatx("float64")
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.layers.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10, name="out")],
        name="model",
    )
    model.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


X, Y = digits(90, "float64", 8)


def fit(model, epochs=3, listed=None, validates=True, **more):
    if validates:
        more["validation_data"] = (X[:40], Y[:40])
    return model.fit(
        X, Y, batch_size=30, shuffle=False, epochs=epochs, verbose=0, callbacks=listed, **more
    ).history


def reference(function):
    return collectives.broadcast_object(function() if MASTER else None)


def equal_on_all(thing):
    told = collectives.allgather_object(thing)
    assert all(str(each) == str(told[0]) for each in told), told
    return thing


@contextlib.contextmanager
def own_folder():
    before, own = os.getcwd(), tempfile.mkdtemp()
    os.chdir(own)
    try:
        yield own
    finally:
        os.chdir(before)
        shutil.rmtree(own)


class Notes(callbacks.Callback):
    """Keeps the logs of the epoch hooks."""

    def __init__(self):
        super().__init__()
        self.epochs, self.ends, self.tests, self.batches = [], [], [], 0

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append({name: float(value) for name, value in logs.items()})

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1

    def on_train_end(self, logs=None):
        self.ends.append({name: float(value) for name, value in (logs or {}).items()})

    def on_test_end(self, logs=None):
        self.tests.append({name: float(value) for name, value in logs.items()})


@case
def epoch_hooks_get_the_values_of_all_ranks():
    plain_notes = Notes()
    plain = reference(
        lambda: (
            fit(made(), 2, [plain_notes]),
            plain_notes.epochs,
            plain_notes.tests,
            plain_notes.ends,
        )
    )
    notes = Notes()
    history = fit(tnt.Model(made()), 2, [notes])
    for name, values in plain[0].items():
        assert np.allclose(history[name], values, atol=1e-10)
    for mine, wanted in ((notes.epochs, plain[1]), (notes.tests, plain[2]), (notes.ends, plain[3])):
        assert len(mine) == len(wanted)
        for one, other in zip(mine, wanted):
            assert sorted(one) == sorted(other) and all(
                abs(one[name] - other[name]) < 1e-10 for name in one
            ), (one, other)
    assert notes.batches == 6
    equal_on_all(notes.epochs)


@case
def lists_may_differ_between_ranks():
    history = callbacks.History()
    notes = Notes()
    result = fit(tnt.Model(made()), 2, [history, notes] if tnt.is_master_rank() else [])
    equal_on_all(result)
    assert history.history == (result if MASTER else {}) or not MASTER
    assert len(notes.epochs) == (2 if MASTER else 0)


@case
def wrapped_callbacks_run_as_told():
    own, master, bare = Notes(), Notes(), Notes()
    wrap = tnt.keras.callbacks.Callback
    fit(
        tnt.Model(made()),
        2,
        [wrap(own, aggregate_logs=False), wrap(master, run_on_all_ranks=False), wrap(bare)],
    )
    assert (
        len(master.epochs) == (2 if MASTER else 0)
        and len(bare.epochs) == 2
        and own.batches == bare.batches == 6
    )
    equal_on_all(bare.epochs)
    told = collectives.allgather_object(own.epochs[0]["loss"])
    assert SIZE == 1 or len(set(told)) == SIZE, told
    samples = [len(part) for part in np.array_split(np.arange(30), SIZE)]
    assert np.isclose(np.average(told, weights=samples), bare.epochs[0]["loss"]), (
        "own values do not average to those of all"
    )
    assert wrap(own).epochs is own.epochs
    with raises(TypeError, "wrapped"):
        wrap(wrap(own))
    with raises(TypeError, "object"):
        wrap(Notes)


@case
def decisions_are_equal_on_all_ranks():
    wrap = tnt.keras.callbacks.Callback
    model = tnt.Model(made())
    early = callbacks.EarlyStopping(
        monitor="val_loss", min_delta=10, patience=1, restore_best_weights=True
    )
    fit(model, 5, [wrap(early)])
    assert equal_on_all(early.stopped_epoch) == 1 and equal_on_all(model.history.epoch) == [0, 1]
    same_bits(model.get_weights())
    model = tnt.Model(made())
    fit(
        model,
        4,
        [
            callbacks.ReduceLROnPlateau(
                monitor="loss", min_delta=10, patience=1, factor=0.5, cooldown=0
            ),
            callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        ],
    )
    rate = float(np.asarray(model.optimizer.learning_rate))
    plain = made()
    wanted = reference(
        lambda: (
            fit(
                plain,
                4,
                [
                    callbacks.ReduceLROnPlateau(
                        monitor="loss", min_delta=10, patience=1, factor=0.5, cooldown=0
                    ),
                    callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
                ],
            ),
            float(np.asarray(plain.optimizer.learning_rate)),
        )[1]
    )
    assert np.isclose(rate, wanted), (rate, wanted)


class StopAt(callbacks.Callback):
    def __init__(self, batch=None, epoch=None):
        super().__init__()
        self.batch, self.epoch, self.steps, self.total = batch, epoch, 0, 0

    def on_train_batch_end(self, batch, logs=None):
        self.total += 1
        if self.batch is not None and batch == self.batch:
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            self.model.stop_training = True


@case
def wish_of_one_rank_stops_all_at_the_same_place():
    last = SIZE - 1
    at_epoch = StopAt(epoch=1) if RANK == last else StopAt()
    model = tnt.Model(made())
    fit(model, 5, [at_epoch])
    assert equal_on_all(at_epoch.total) == 6, at_epoch.total
    in_epoch = StopAt(batch=0) if RANK == last else StopAt()
    fit(model, 5, [in_epoch], validates=False)
    assert equal_on_all(in_epoch.total) in (1, 2), in_epoch.total
    same_bits(model.get_weights())
    again = StopAt()
    fit(model, 2, [again])
    assert again.total == 6, "a former wish stopped a new fit"


@case
def not_a_number_stops_all():
    x = X.copy()
    x[30] = np.nan
    notes = Notes()
    model = tnt.Model(made())
    model.fit(
        x,
        Y,
        batch_size=30,
        shuffle=False,
        epochs=3,
        verbose=0,
        callbacks=[callbacks.TerminateOnNaN(), notes],
    )
    assert equal_on_all(notes.batches) in (2, 3), notes.batches


@case
def checkpoints_are_written_by_the_master():
    with own_folder():
        fit(
            tnt.Model(made()),
            3,
            [
                callbacks.ModelCheckpoint("models/{epoch}-{val_loss:.4f}.keras"),
                callbacks.ModelCheckpoint(
                    "best.weights.h5",
                    save_weights_only=True,
                    save_best_only=True,
                    monitor="val_loss",
                ),
            ],
        )
        assert (
            (sorted(os.listdir(".")) == ["best.weights.h5", "models"])
            if MASTER
            else os.listdir(".") == []
        )
        if MASTER:
            names = sorted(os.listdir("models"))
            assert len(names) == 3 and names[0].startswith("1-"), names
            plain = keras.models.load_model(os.path.join("models", names[2]))
            best = made()
            best.load_weights("best.weights.h5")
            # In batches as in fit: Keras 3.0 reports their mean, whatever their sizes.
            loss = best.evaluate(X[:40], Y[:40], batch_size=30, verbose=0)[0]
            assert "{:.4f}".format(loss) in "".join(names) and type(plain).__name__ == "Sequential"


@case
def checkpoints_between_epochs_look_at_all_ranks():
    def saved(model):
        with own_folder():
            kept = callbacks.ModelCheckpoint(
                "{epoch}-{batch}.weights.h5" if KERAS3 else "{epoch}-{batch}.h5",
                save_freq=2,
                monitor="loss",
                save_best_only=True,
                save_weights_only=True,
            )
            fit(model, 2, [kept], validates=False)
            return sorted(os.listdir(".")), float(kept.best)

    plain = reference(lambda: saved(made()))
    names, best = saved(tnt.Model(made()))
    assert np.isclose(best, plain[1], atol=1e-10) and equal_on_all(best) == best
    assert names == (plain[0] if MASTER else [])


@case
def checkpoints_between_epochs_hold_averaged_statistics():
    x = np.random.default_rng(5).normal(size=(60, 4))
    norm = keras.layers.BatchNormalization(momentum=0.5, name="norm")
    stack = [keras.layers.Input((4,)), norm, keras.layers.Dense(1, name="out")]
    model = tnt.Model(keras.Sequential(stack))
    model.compile("sgd", "mse")
    name = "{batch}.weights.h5" if KERAS3 else "{batch}.h5"
    with own_folder():
        kept = callbacks.ModelCheckpoint(name, save_freq=2, save_weights_only=True)
        # Lists may differ between ranks.
        listed = [kept] if MASTER else []
        data = dataset(x, x[:, :1], batch=12)
        model.fit(data, epochs=1, verbose=0, callbacks=listed)
        if not MASTER:
            return
        names = sorted(os.listdir("."))
        assert len(names) == 2, names
        for number, name in zip((2, 4), names):
            mean = np.zeros(4)
            for begin in range(0, 12 * number, 12):
                mean = (mean + x[begin : begin + 12].mean(0)) / 2
            with h5py.File(name) as file:
                found = []
                file.visititems(lambda _, each: found.append(each))
                stored = [each[()] for each in found if getattr(each, "shape", None) == (4,)]
            assert any(np.allclose(each, mean, atol=1e-6) for each in stored), (mean, stored)


def board(folder):
    """A TensorBoard callback that only makes its folder: the package that writes events need not be
    installed.
    """

    def set_model(self, model):
        os.makedirs(self.log_dir)

    hooks = {
        name: getattr(callbacks.Callback, name)
        for name in dir(callbacks.Callback)
        if name.startswith("on_")
    }
    return type("Board", (callbacks.TensorBoard,), dict(hooks, set_model=set_model))(folder)


@case
def writers_run_on_the_master():
    with own_folder():
        logger = callbacks.CSVLogger("log.csv")
        history = fit(tnt.Model(made()), 2, [logger, board("board")])
        assert sorted(os.listdir(".")) == (["board", "log.csv"] if MASTER else []), os.listdir(".")
        if MASTER:
            with open("log.csv", newline="") as file:
                rows = list(csv.DictReader(file))
            assert np.allclose([float(row["loss"]) for row in rows], history["loss"])


@case
def every_rank_writes_for_tensorboard_if_told():
    with own_folder():
        kept = board("board")
        settings.get().tensorboard_on_all_devices = True
        try:
            fit(tnt.Model(made()), 1, [kept])
        finally:
            settings.get().tensorboard_on_all_devices = False
        assert os.listdir("board") == (["rank_{}".format(RANK)] if SIZE > 1 else []), os.listdir(
            "board"
        )
        assert kept.log_dir == "board"


@case
def texts_of_callbacks_are_printed_by_the_master():
    text = io.StringIO()
    with own_folder(), contextlib.redirect_stdout(text):
        fit(
            tnt.Model(made()),
            2,
            [
                callbacks.EarlyStopping(monitor="loss", min_delta=10, patience=1, verbose=1),
                callbacks.ModelCheckpoint("{epoch}.weights.h5", save_weights_only=True, verbose=1),
            ],
        )
    printed = text.getvalue()
    assert (
        ("early stopping" in printed and "saving model to" in printed) if MASTER else printed == ""
    ), printed


class Interrupt(callbacks.Callback):
    """Ends a fit as a lost job would."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise KeyboardInterrupt


@case
def backup_continues_after_a_restart():
    def stopped_and_restored(wrap):
        with own_folder():

            def backup():
                return callbacks.BackupAndRestore("backup")

            with raises(KeyboardInterrupt):
                fit(wrap(made()), 4, [backup(), Interrupt()], validates=False)
            there = os.path.exists("backup")
            keras.utils.set_random_seed(99)
            model = wrap(made())
            model.set_weights([0 * weight for weight in model.get_weights()])
            notes = Notes()
            fit(model, 4, [backup(), notes], validates=False)
            return there, notes.batches, model.get_weights()

    plain = reference(lambda: stopped_and_restored(lambda model: model))
    there, batches, weights = stopped_and_restored(tnt.Model)
    assert there == MASTER and batches == plain[1] == 6, (there, batches, plain[1])
    for one, other in zip(weights, plain[2]):
        assert np.allclose(one, other, atol=1e-12)
    same_bits(weights)


@case
def every_kind_of_callback_runs():
    with own_folder():
        seen = []
        listed = [
            callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(logs["loss"])),
            callbacks.RemoteMonitor(root="http://127.0.0.1:9"),
            callbacks.TerminateOnNaN(),
        ]
        for name in ("SwapEMAWeights",):
            if hasattr(callbacks, name):
                model = made()
                model.compile(
                    keras.optimizers.SGD(0.1, use_ema=True), model.loss, metrics=["accuracy"]
                )
                fit(tnt.Model(model), 2, [getattr(callbacks, name)(swap_on_epoch=True)])
                same_bits(model.get_weights())
        history = fit(tnt.Model(made()), 2, listed)
        assert equal_on_all(seen) == history["loss"]
        inner = callbacks.CallbackList([notes for notes in (Notes(),)], model=None)
        fit(tnt.Model(made()), 2, inner)
        assert len(inner.callbacks[0].epochs) == 2


def log_ends(log):
    """Notes the loss of each epoch."""
    return lambda epoch, logs: log.append(logs["loss"])


# How each class of keras.callbacks is made; a folder of the run's own is the working directory.
MADE = {
    "BackupAndRestore": lambda: callbacks.BackupAndRestore("backup"),
    "CSVLogger": lambda: callbacks.CSVLogger("log.csv"),
    "Callback": lambda: callbacks.Callback(),
    "EarlyStopping": lambda: callbacks.EarlyStopping(monitor="val_loss", min_delta=10, patience=1),
    "History": lambda: callbacks.History(),
    "LambdaCallback": lambda: callbacks.LambdaCallback(on_epoch_end=log_ends([])),
    "LearningRateScheduler": lambda: callbacks.LearningRateScheduler(lambda _, rate: rate * 0.9),
    "ModelCheckpoint": lambda: callbacks.ModelCheckpoint("{epoch}.keras"),
    "ProgbarLogger": lambda: callbacks.ProgbarLogger(),
    "ReduceLROnPlateau": lambda: callbacks.ReduceLROnPlateau(
        monitor="loss", min_delta=10, patience=1, factor=0.5
    ),
    "RemoteMonitor": lambda: callbacks.RemoteMonitor(root="http://127.0.0.1:9"),
    "SwapEMAWeights": lambda: callbacks.SwapEMAWeights(swap_on_epoch=True),
    "TensorBoard": lambda: board("board"),
    "TerminateOnNaN": lambda: callbacks.TerminateOnNaN(),
}
# One rank cannot write their format for all, so several ranks refuse them at the start of fit.
REFUSED = ("OrbaxCheckpoint", "SidecarEvaluatorModelExport")
# It reads parameters that Keras 2 has ceased to set, so that plain Keras fails with it too.
BROKEN = ("BaseLogger",)
# It holds callbacks, as `every_kind_of_callback_runs` has it, and is none.
LISTS = ("CallbackList",)


def classes_of_callbacks():
    """All of this version of Keras, by name."""
    modules = [callbacks, getattr(callbacks, "experimental", None)]
    names = {name for module in modules for name in dir(module)}
    return sorted(
        name
        for name in names
        if not name.startswith("_") and isinstance(getattr(callbacks, name, None), type)
    )


@case
def every_class_of_keras_trains_as_plain_keras_does():
    names = classes_of_callbacks()
    assert {"EarlyStopping", "ModelCheckpoint", "TensorBoard"} <= set(names), names
    unknown = set(names) - set(MADE) - set(REFUSED + BROKEN + LISTS)
    assert not unknown, "{} needs a line in MADE".format(sorted(unknown))
    for name in set(names).intersection(BROKEN):
        with raises(KeyError, "metrics"):
            fit(made(), 1, [getattr(callbacks, name)()])

    def trained(name, wrap):
        model = made()
        if name == "SwapEMAWeights":
            model.compile(keras.optimizers.SGD(0.1, use_ema=True), model.loss, metrics=["accuracy"])
        model = wrap(model)
        with own_folder(), contextlib.redirect_stdout(io.StringIO()):
            history = fit(model, 3, [MADE[name]()])
            return history, model.get_weights(), sorted(os.listdir("."))

    for name in names:
        if name not in MADE:
            continue
        plain = reference(lambda name=name: trained(name, lambda model: model))
        history, weights, files = trained(name, tnt.Model)
        assert sorted(history) == sorted(plain[0]), (name, history, plain[0])
        for key, values in plain[0].items():
            assert np.allclose(history[key], values, atol=1e-9), (name, key, history[key], values)
        for one, other in zip(weights, plain[1]):
            assert np.allclose(one, other, atol=1e-9), name
        same_bits(weights)
        assert files == (plain[2] if MASTER else []), (name, files, plain[2])


@case
def callbacks_whose_format_one_rank_cannot_write_are_refused():
    for name in REFUSED:
        kind = getattr(callbacks, name, None)
        if kind is None or SIZE == 1:
            continue
        # Their own requirements, of other packages, do not matter here.
        refused = kind.__new__(kind)
        # Of what checkpoints have.
        refused.save_freq = "epoch"
        with raises(ValueError, name, "ModelCheckpoint", "run_on_all_ranks=False"):
            fit(tnt.Model(made()), 1, [refused])
    fit(tnt.Model(made()), 1)


@case
def evaluate_and_predict_call_callbacks():
    class Counts(callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.test = self.predict = 0

        def on_test_end(self, logs=None):
            self.test += 1
            self.loss = float(logs["loss"])

        def on_predict_end(self, logs=None):
            self.predict += 1

    counts = Counts()
    model = tnt.Model(made())
    loss = model.evaluate(X, Y, verbose=0, callbacks=[counts])[0]
    model.predict(X, verbose=0, callbacks=[counts])
    equal_on_all((counts.test, counts.predict, counts.loss))
    assert counts.test == counts.predict == 1 and counts.loss == loss
    # One batch, of a number that nobody knows before: the other ranks have none.
    model.predict((X[:30] for _ in range(1)), verbose=0, callbacks=[counts])
    model.predict(X[:30], verbose=0, batch_size=30, callbacks=[counts])
    equal_on_all(counts.predict)
    assert counts.predict == 3


@case
def evaluate_inside_a_callback():
    class Inside(callbacks.Callback):
        values = None

        def on_epoch_end(self, epoch, logs=None):
            self.values = self.model.evaluate(X[:20], Y[:20], verbose=0)

    inside = Inside()
    model = tnt.Model(made())
    fit(model, 1, [inside])
    assert np.allclose(equal_on_all(inside.values), model.evaluate(X[:20], Y[:20], verbose=0))


if __name__ == "__main__":
    run()
