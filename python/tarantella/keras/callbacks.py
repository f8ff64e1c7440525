"""Callbacks in a job of several ranks.

The list of a rank begins with `First`, which puts global values into the logs, and ends with
`Last`, which agrees on stopping and compares the ranks. Both are ours and stand on all ranks, so no
collective depends on the list of the user, which may differ between ranks. The user's objects are
called themselves, never copied.

| callbacks | run on |
|---|---|
| TensorBoard, CSVLogger, RemoteMonitor, ProgbarLogger, BackupAndRestore | the master |
| ModelCheckpoint | all, on global values; only the master writes |
| all others | all |
"""

import os
import shutil
import tempfile
from typing import Any, Callable, Dict, List, Optional

from .. import collectives, log, ranks, settings
from . import metrics, regroup

_MASTER_ONLY = ("CSVLogger", "RemoteMonitor", "ProgbarLogger", "BackupAndRestore")
_ONE_RANK_ONLY = ("OrbaxCheckpoint", "SidecarEvaluatorModelExport")


class Callback:
    """Tells how a callback is run: `tnt.keras.callbacks.Callback(EarlyStopping(...))`.

    `aggregate_logs=False`: epoch hooks get this rank's own values. `run_on_all_ranks=False`: only
    the master runs it. All other attributes are those of the callback.
    """

    def __init__(
        self, callback: Any, aggregate_logs: bool = True, run_on_all_ranks: bool = True
    ) -> None:
        if isinstance(callback, Callback):
            raise TypeError("the callback is wrapped already")
        if isinstance(callback, type) or not hasattr(callback, "on_epoch_end"):
            raise TypeError(
                "tnt.keras.callbacks.Callback takes an object of a callback class of Keras, not"
                " {!r}".format(callback)
            )
        self.callback = callback
        self.aggregate_logs = aggregate_logs
        self.run_on_all_ranks = run_on_all_ranks

    def __getattr__(self, name: str) -> Any:
        if name == "callback":
            raise AttributeError(name)
        return getattr(self.callback, name)


def _is(keras: Any, callback: Any, *names: str) -> bool:
    classes = [getattr(keras.callbacks, name, None) for name in names]
    experimental = getattr(keras.callbacks, "experimental", None)
    classes += [getattr(experimental, name, None) for name in names]
    return isinstance(callback, tuple(kind for kind in classes if isinstance(kind, type)))


def flatten(keras: Any, callbacks: Any) -> List[Any]:
    """The user's callbacks as a list; a CallbackList of Keras gives those that it holds."""
    if callbacks is None:
        return []
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    if isinstance(callbacks, (list, tuple)):
        return [entry for part in callbacks for entry in flatten(keras, part)]
    return [callbacks]


# ==== What the ranks tell each other before a call ====


def told(keras: Any, callbacks: List[Any]) -> Dict[str, Any]:
    """What the others have to know of this rank's callbacks."""
    bare = [entry.callback if isinstance(entry, Callback) else entry for entry in callbacks]
    checkpoints = [
        entry
        for entry in bare
        if _is(keras, entry, "ModelCheckpoint") and isinstance(entry.save_freq, int)
    ]
    monitors = [entry for entry in checkpoints if getattr(entry, "save_best_only", False)]
    return {
        "saves": sorted(entry.save_freq for entry in checkpoints),
        "frequencies": sorted(entry.save_freq for entry in monitors),
        "restores": (
            ranks.is_master_rank() and any(_is(keras, entry, "BackupAndRestore") for entry in bare)
        ),
    }


# ==== Ours ====


class Values:
    """Values of a call: of all ranks, and this rank's own."""

    def __init__(self) -> None:
        self.training: Optional[Dict[str, Any]] = None
        self.evaluation: Optional[Dict[str, Any]] = None
        self.validation: Dict[str, Any] = {}
        self.own: Dict[str, Any] = {}
        self.predicted = False


class _Frequency:
    """Counts batches as ModelCheckpoint does, with several steps per execution too."""

    def __init__(self, every: int, keras3: bool) -> None:
        self.every = every
        self.seen = 0
        self.last: Optional[int] = None if keras3 else 0

    def reached(self, batch: int) -> bool:
        """Whether a callback with this frequency acts after a batch."""
        self.seen += batch + 1 if self.last is None or batch <= self.last else batch - self.last
        self.last = batch
        if self.seen >= self.every:
            self.seen = 0
            return True
        return False


def _put(logs: Optional[Dict[str, Any]], values: Dict[str, Any], prefix: str = "") -> None:
    for name, value in values.items():
        if logs is not None and prefix + name in logs:
            logs[prefix + name] = value


def _first_class(keras: Any, batches: bool) -> type:
    class First(keras.callbacks.Callback):
        """Stands first: reduces metrics and puts the global values into the logs."""

        def __init__(self, values: Values, hooks: Any, agreed: Dict[str, Any]) -> None:
            super().__init__()
            self._supports_tf_logs = True
            self.values = values
            self.hooks = hooks
            keras3 = keras.__version__.startswith("3.")
            self.saves, self.frequencies = (
                [_Frequency(every, keras3) for every in agreed.get(name, [])]
                for name in ("saves", "frequencies")
            )
            self._training = False

        def on_train_begin(self, logs=None):
            self._training = True
            self.hooks.trained_epochs.reset()

        def on_epoch_begin(self, epoch, logs=None):
            self.values.training = None
            self.values.validation = {}

        def _end_steps(self) -> None:
            """Behind the last step of an epoch, where Keras 3 tells the data of its end."""
            if self.values.training is not None:
                return
            if self.hooks.keras3:
                # A wish behind the last batch has travelled with no line.
                self.hooks.trained_epochs.end(self.hooks.agree_on_stop(self.model))
            self.hooks.end_steps(self.model)
            self.values.training = metrics.global_results(self.model)

        def on_test_begin(self, logs=None):
            # Keras resets the metrics after this, and validation must find equal models.
            if self._training:
                self._end_steps()
            self.hooks.evaluated_epochs.reset()

        def on_test_end(self, logs=None):
            self.hooks.evaluated_epochs.end(getattr(self.model, "stop_evaluating", False))
            results = metrics.global_results(self.model)
            results.update(metrics.average_others(logs or {}, results))
            self.values.evaluation = results
            _put(logs, results)

        def on_epoch_end(self, epoch, logs=None):
            logs = {} if logs is None else logs
            self.values.own = dict(logs)
            self._end_steps()
            own = {name: value for name, value in logs.items() if not name.startswith("val_")}
            self.values.training.update(metrics.average_others(own, self.values.training))
            _put(logs, self.values.training)
            if self.values.evaluation is not None:
                _put(logs, self.values.evaluation, "val_")

        def on_train_end(self, logs=None):
            self._training = False
            _put(logs, self.values.training or {})

        def on_predict_end(self, logs=None):
            self.hooks.evaluated_epochs.end(getattr(self.model, "stop_predicting", False))
            self.values.predicted = True

    if not batches:
        return First

    class FirstWithBatches(First):
        """Also averages moving statistics at batches after which a checkpoint is written, and
        reduces the metrics where it looks at them.
        """

        def on_train_batch_end(self, batch, logs=None):
            # All counters count, so no short circuit.
            if any([frequency.reached(batch) for frequency in self.saves]):
                self.hooks.average_moving_statistics(self.model)
            if any([frequency.reached(batch) for frequency in self.frequencies]):
                _put(logs, metrics.global_results(self.model))

    return FirstWithBatches


def _last_class(keras: Any) -> type:
    class Last(keras.callbacks.Callback):
        """Stands last: agrees on stopping and compares the ranks. Tells the data of the begin of
        epochs, and with Keras 2 of the end.
        """

        def __init__(self, hooks: Any, restored: Any) -> None:
            super().__init__()
            self._supports_tf_logs = True
            self.hooks = hooks
            self.restored = restored

        def on_train_begin(self, logs=None):
            if self.restored is not None:
                self.restored(self.model)

        def on_epoch_begin(self, epoch, logs=None):
            self.hooks.trained_epochs.begin()

        def on_test_begin(self, logs=None):
            self.hooks.evaluated_epochs.begin()

        def on_predict_begin(self, logs=None):
            self.hooks.evaluated_epochs.begin()

        def on_epoch_end(self, epoch, logs=None):
            self.hooks.end_epoch(self.model)
            if not self.hooks.keras3:
                self.hooks.trained_epochs.end(self.model.stop_training)

    return Last


def _own_values_class(keras: Any) -> type:
    class OwnValues(keras.callbacks.Callback):
        """Calls a callback with this rank's own values in epoch hooks."""

        def __init__(self, callback: Any, values: Values) -> None:
            super().__init__()
            self.callback = callback
            self.values = values

        def set_model(self, model):
            self.callback.set_model(model)

        def set_params(self, params):
            self.callback.set_params(params)

        def on_epoch_end(self, epoch, logs=None):
            own = {name: metrics.plain(value) for name, value in self.values.own.items()}
            self.callback.on_epoch_end(epoch, dict(logs or {}, **own))

    for name in (
        "on_train_begin",
        "on_train_end",
        "on_epoch_begin",
        "on_test_begin",
        "on_test_end",
        "on_predict_begin",
        "on_predict_end",
        "on_train_batch_begin",
        "on_train_batch_end",
        "on_test_batch_begin",
        "on_test_batch_end",
        "on_predict_batch_begin",
        "on_predict_batch_end",
        "_implements_train_batch_hooks",
        "_implements_test_batch_hooks",
        "_implements_predict_batch_hooks",
    ):

        def forward(self, *arguments, _name=name, **named):
            return getattr(self.callback, _name)(*arguments, **named)

        setattr(OwnValues, name, forward)
    return OwnValues


# ==== The list of a rank ====


class Arrangement:
    """The callbacks that a call hands to Keras on this rank; `undo` gives the user's objects back
    as they were.
    """

    def __init__(
        self,
        keras: Any,
        callbacks: List[Any],
        agreed: Dict[str, Any],
        hooks: Any,
        restored: Any = None,
    ) -> None:
        self.values = Values()
        self._undo: List[Any] = []
        # What ends already when this rank becomes the master, since the former was lost.
        self._undo_of_others: List[Any] = []
        self._of_master: List[str] = []
        self._is_master = ranks.is_master_rank()
        regroup.follow(self)
        first = _first_class(keras, bool(agreed.get("saves")))(self.values, hooks, agreed)
        self.list = [first]
        for entry in callbacks:
            wrapped = isinstance(entry, Callback)
            callback = entry.callback if wrapped else entry
            if not self._runs_here(keras, callback, not wrapped or entry.run_on_all_ranks):
                self._of_master.append(type(callback).__name__)
                continue
            self._redirect(keras, callback)
            if wrapped and not entry.aggregate_logs:
                callback = _own_values_class(keras)(callback, self.values)
            self.list.append(callback)
        self.list.append(_last_class(keras)(hooks, restored))

    def _runs_here(self, keras: Any, callback: Any, everywhere: bool) -> bool:
        if ranks.get_size() > 1 and _is(keras, callback, *_ONE_RANK_ONLY) and everywhere:
            raise ValueError(
                "{} writes with a format that one rank cannot write for all; use ModelCheckpoint,"
                " or wrap it: tnt.keras.callbacks.Callback(callback,"
                " run_on_all_ranks=False)".format(type(callback).__name__)
            )
        if ranks.is_master_rank():
            return True
        if not everywhere or _is(keras, callback, *_MASTER_ONLY):
            return False
        return not _is(keras, callback, "TensorBoard") or settings.get().tensorboard_on_all_devices

    def _redirect(self, keras: Any, callback: Any) -> None:
        """Gives ranks that write a place of their own, for as long as the call lasts."""
        if ranks.get_size() == 1:
            return
        if _is(keras, callback, "TensorBoard") and settings.get().tensorboard_on_all_devices:
            folder = os.path.join(str(callback.log_dir), "rank_{}".format(ranks.get_rank()))
            self._undo.append(_replaced(callback, "log_dir", folder))
        elif _is(keras, callback, "ModelCheckpoint") and not ranks.is_master_rank():
            # Keras makes the folder before it saves; the path may not exist on this host.
            folder = tempfile.mkdtemp(prefix="tarantella-")
            self._undo_of_others.append(lambda: shutil.rmtree(folder, ignore_errors=True))
            path = os.path.join(folder, os.path.basename(str(callback.filepath)))
            self._undo_of_others.append(_replaced(callback, "filepath", path))

    def update(self) -> None:
        """The ranks have changed: a new master writes checkpoints where the user has said."""
        if self._is_master or not ranks.is_master_rank():
            return
        self._is_master = True
        _run_back(self._undo_of_others)
        if self._of_master:
            log.logger().warning(
                "%s ran on the master, which was lost, and will not run any more in this call",
                ", ".join(self._of_master),
            )

    def tell(self, model: Any, hook: str) -> None:
        """Calls a hook that Keras does not call on a rank without data."""
        for callback in self.list:
            callback.set_model(model)
            getattr(callback, hook)()

    def undo(self) -> None:
        """Takes back what was changed in the user's objects."""
        regroup.unfollow(self)
        _run_back(self._undo_of_others)
        _run_back(self._undo)


def _replaced(callback: Any, name: str, value: Any) -> Callable[[], None]:
    """Sets an attribute; what takes that back."""
    before = getattr(callback, name)
    setattr(callback, name, value)
    return lambda: setattr(callback, name, before)


def _run_back(steps: List[Callable[[], None]]) -> None:
    while steps:
        steps.pop()()


def values_of(callbacks: Any) -> Optional[Values]:
    """The values of the call whose list, made by us, Keras hands on."""
    for callback in getattr(callbacks, "callbacks", []):
        values = getattr(callback, "values", None)
        if isinstance(values, Values):
            return values
    return None


def agree(own: Dict[str, Any], of_all: List[Dict[str, Any]]) -> Dict[str, Any]:
    """What all ranks do for the callbacks of any of them."""
    agreed: Dict[str, Any] = {
        name: sorted({every for each in of_all for every in each[name]})
        for name in ("saves", "frequencies")
    }
    agreed["restores"] = any(each["restores"] for each in of_all)
    return agreed


def restored_counters(keras3: bool, model: Any) -> None:
    """After the master has restored a backup: gives the others its epoch, where Keras 3 keeps that
    in the model.
    """
    if keras3:
        epoch = collectives.broadcast_object(getattr(model, "_initial_epoch", None))
        if not ranks.is_master_rank():
            model._initial_epoch = epoch
