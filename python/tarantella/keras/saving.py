"""Saving and loading of models in a job of several ranks: the methods of a tnt.Model, and what
`tnt.models` stands on.

The master writes, to a temporary name first, which it renames; an error of it is raised on all
ranks. Files are read by the master and sent to the others, so no shared file system is needed.
Inside callbacks, which need not run on all ranks, nothing is exchanged: there the master writes,
and each rank reads for itself.

`Saving` is a base of the class that model.py gives to models.
"""

import contextlib
import errno
import os
import pickle
import resource
import shutil
import tempfile
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np
import tensorflow as tf

from .. import collectives, ranks
from . import hdf5

_FILES = (".keras", ".h5", ".hdf5")
# A full disk, an exhausted quota, and the limit of a process (ulimit -f).
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


# ==== Errors of the master ====


def _packed(error: BaseException) -> bytes:
    try:
        text = pickle.dumps(error)
        pickle.loads(text)
        return text
    except Exception:  # An exception may refuse to be pickled in any way.
        return pickle.dumps(
            RuntimeError("rank {}: {}: {}".format(ranks.get_rank(), type(error).__name__, error))
        )


def on_master(action: Callable[[], Any]) -> Any:
    """Runs an action on the master; what it raises there is raised on all ranks. The others get
    None.
    """
    result, error = None, None
    if ranks.is_master_rank():
        try:
            result = action()
        except Exception as caught:
            error = caught
    if ranks.get_size() > 1:
        told = collectives.broadcast_object(
            None if error is None else _packed(error), root=ranks.get_master_rank()
        )
        if told is not None and error is None:
            error = pickle.loads(told)
    if error is not None:
        raise error
    return result


# ==== Writing ====


def _no_room(error: Optional[BaseException]) -> Optional[int]:
    """The number of the error by which a system has no room for a file; None if that is not why.

    HDF5 and TensorFlow raise errors of their own, in whose text it stands.
    """
    while error is not None:
        number = getattr(error, "errno", None)
        if number in _NO_ROOM:
            return number
        for number in _NO_ROOM:
            if os.strerror(number).lower() in str(error).lower():
                return number
        error = error.__cause__ or error.__context__
    return None


@contextlib.contextmanager
def _with_room(path: Any, whole: bool) -> Iterator[None]:
    """Says of a file for which there is no room what can be done. `whole`: it gets its name only
    once it has been written.
    """
    try:
        yield
    except Exception as error:
        number = _no_room(error)
        if number is None:
            raise
        left = (
            "what stood there before is as it was"
            if whole
            else "what stands there now is not complete, so do not load it"
        )
        limit = " (ulimit -f)" if number == errno.EFBIG else ""
        raise OSError(
            number,
            "{}{} on {}: make room there, or save to another place; {}".format(
                os.strerror(number), limit, ranks.describe(ranks.job_rank(ranks.get_rank())), left
            ),
            os.fspath(path),
        ) from error


def bytes_of(model: Any, optimizer: bool) -> int:
    """Bytes that a file of the model has at least: its weights, and what its optimizer keeps."""
    from . import weights

    try:
        variables = list(model.weights)
    except ValueError:
        # Keras 2, of a model that has none yet.
        return 0
    if optimizer:
        variables += weights.optimizer_variables(getattr(model, "optimizer", None))
    sizes = (int(np.prod(each.shape)) * tf.as_dtype(each.dtype).size for each in variables)
    return sum(sizes)


def _require_room(path: Any, needs: int) -> None:
    """An error if a file system has no room for so many bytes, before anything is written."""
    if not _is_local(os.fspath(path)):
        return
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY and needs > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    parent = os.path.dirname(os.path.abspath(os.fspath(path)))
    while not os.path.isdir(parent):
        parent = os.path.dirname(parent)
    about = os.statvfs(parent)
    free = (about.f_bavail if os.geteuid() else about.f_bfree) * about.f_frsize
    # Some file systems do not tell how large they are.
    if about.f_blocks and needs > free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _is_local(path: str) -> bool:
    return "://" not in path


@contextlib.contextmanager
def _temporary(path: Any, one_file: bool, folder: bool) -> Iterator[Any]:
    """The name to write to: what has been written whole gets its own name at the end of the block.

    Other forms, such as checkpoints of several files, are written where they belong.
    """
    text = os.fspath(path)
    if not _is_local(text) or not (one_file or folder):
        yield path
        return
    text = text.rstrip(os.sep)
    parent, name = os.path.split(text)
    if one_file and os.path.isdir(text):
        raise IsADirectoryError("{} is a folder; give the name of a file".format(text))
    if parent and not os.path.isdir(parent):
        os.makedirs(parent, exist_ok=True)
    own = os.path.join(parent, ".{}.{}".format(os.getpid(), name))
    try:
        yield own
        if os.path.isdir(text):
            former = own + ".former"
            os.rename(text, former)
            os.rename(own, text)
            shutil.rmtree(former)
        elif os.path.exists(own):
            os.replace(own, text)
    finally:
        if os.path.isdir(own):
            shutil.rmtree(own, ignore_errors=True)
        elif os.path.exists(own):
            os.remove(own)


def write(
    path: Any,
    action: Callable[[Any], Any],
    in_callback: bool,
    all_devices: bool,
    one_file: bool,
    folder: bool = False,
    needs: int = 0,
) -> Any:
    """Has the master, or every rank, write by `action(name)`, at least so many bytes."""

    def carefully() -> Any:
        whole = _is_local(os.fspath(path)) and (one_file or folder)
        with _with_room(path, whole):
            _require_room(path, needs)
            with _temporary(path, one_file, folder) as name, hdf5.errors_at_the_end():
                return action(name)

    if all_devices:
        return carefully()
    if in_callback:
        return carefully() if ranks.is_master_rank() else None
    return on_master(carefully)


def is_one_file(path: Any) -> bool:
    """Whether Keras writes a single file of that name."""
    return os.fspath(path).endswith(_FILES)


# ==== Reading ====


def _read(path: str) -> Tuple[str, List[Tuple[str, bytes]]]:
    """The files of a saved model or of weights: how they are called beside each other, and what is
    in them.
    """
    gfile = tf.io.gfile
    name = os.path.basename(path.rstrip("/"))
    if gfile.isdir(path):
        files = []
        for folder, _, names in gfile.walk(path):
            inner = os.path.relpath(folder, path)
            files += [
                (os.path.normpath(os.path.join(name, inner, each)), os.path.join(folder, each))
                for each in names
            ]
    elif gfile.exists(path):
        files = [(name, path)]
    else:
        # A checkpoint of TensorFlow: several files with one prefix.
        files = [
            (os.path.basename(each), each)
            for each in gfile.glob(path + ".index") + gfile.glob(path + ".data-*")
        ]
        if not files:
            raise FileNotFoundError(
                "{} does not exist on the host of rank {}; give a path that rank can read".format(
                    path, ranks.get_master_rank()
                )
            )
    contents = []
    for short, full in files:
        with gfile.GFile(full, "rb") as file:
            contents.append((short, file.read()))
    return name, contents


@contextlib.contextmanager
def at_hand(path: Any) -> Iterator[Any]:
    """The path by which this rank reads what the master finds at `path`."""
    if ranks.get_size() == 1 or not _is_local(os.fspath(path)):
        yield path
        return
    found = on_master(lambda: _read(os.fspath(path)))
    name, lengths = collectives.broadcast_object(
        None
        if found is None
        else (found[0], [(short, len(content)) for short, content in found[1]])
    )
    contents: Dict[str, Any] = {}
    for number, (short, length) in enumerate(lengths):
        own = (
            np.zeros(length, np.uint8)
            if found is None
            else np.frombuffer(found[1][number][1], np.uint8)
        )
        contents[short] = np.asarray(collectives.broadcast(own)) if length else own
    if found is not None:
        # The others may have no room for it.
        everywhere(lambda: None)
        yield path
        return
    folder = tempfile.mkdtemp(prefix="tarantella-")
    try:
        everywhere(lambda: _put(folder, contents))
        yield os.path.join(folder, name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _put(folder: str, contents: Dict[str, Any]) -> None:
    """Writes what the master has read; TMPDIR says where."""
    with _with_room(folder, False):
        for short, content in contents.items():
            target = os.path.join(folder, short)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                file.write(content)


def everywhere(action: Callable[[], Any]) -> Any:
    """Runs an action on all ranks; what it raises on one is raised on all."""
    result, error = None, None
    try:
        result = action()
    except Exception as caught:
        error = caught
    if ranks.get_size() > 1:
        told = collectives.allgather_object(None if error is None else _packed(error))
        error = error or next((pickle.loads(each) for each in told if each is not None), None)
    if error is not None:
        raise error
    return result


# ==== Methods of a tnt.Model ====


class Saving:
    """The methods by which a model is saved and loaded."""

    def save(
        self, filepath: Any, *args: Any, tnt_save_all_devices: bool = False, **kwargs: Any
    ) -> Any:
        """Keras' save, by the master; by every rank with tnt_save_all_devices=True."""
        overwrite = args[0] if args else kwargs.get("overwrite", True)
        one_file = is_one_file(filepath)
        folder = not one_file and kwargs.get("save_format") != "h5" and "zipped" not in kwargs
        return _write(
            self,
            "save",
            filepath,
            args,
            kwargs,
            tnt_save_all_devices,
            one_file and overwrite,
            folder and overwrite,
        )

    def save_weights(
        self, filepath: Any, *args: Any, tnt_save_all_devices: bool = False, **kwargs: Any
    ) -> Any:
        """Keras' save_weights, by the master; by every rank with tnt_save_all_devices=True."""
        overwrite = args[0] if args else kwargs.get("overwrite", True)
        one_file = is_one_file(filepath) and kwargs.get("max_shard_size") is None and len(args) < 2
        return _write(
            self,
            "save_weights",
            filepath,
            args,
            kwargs,
            tnt_save_all_devices,
            one_file and overwrite,
            False,
        )

    def export(
        self, filepath: Any, *args: Any, tnt_save_all_devices: bool = False, **kwargs: Any
    ) -> Any:
        """Keras' export, by the master; by every rank with tnt_save_all_devices=True."""
        saved_model = (
            args[0] if args else kwargs.get("format", "tf_saved_model")
        ) == "tf_saved_model"
        return _write(
            self,
            "export",
            filepath,
            args,
            kwargs,
            tnt_save_all_devices,
            not saved_model,
            saved_model,
        )

    def load_weights(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """Keras' load_weights, of what the master finds at the path."""
        from . import calls, model as models

        base = models.base_of(self)

        def load(path: Any) -> Any:
            with models.restored(self):
                return base.load_weights(self, path, *args, **kwargs)

        if calls.in_loop(self):
            result = load(filepath)
        else:
            with at_hand(filepath) as path:
                result = everywhere(lambda: load(path))
        models.state_of(self).dirty = True
        return result

    def to_json(self, **kwargs: Any) -> str:
        """Keras' to_json."""
        from . import model as models

        with models.restored(self):
            return models.base_of(self).to_json(self, **kwargs)

    def to_yaml(self, **kwargs: Any) -> str:
        """Not possible, as in Keras."""
        raise RuntimeError(
            "Method `model.to_yaml()` has been removed due to security risk of arbitrary code"
            " execution. Please use `model.to_json()` instead."
        )


def _write(
    model: Any,
    name: str,
    filepath: Any,
    args: Any,
    kwargs: Dict[str, Any],
    all_devices: bool,
    one_file: bool,
    folder: bool,
) -> Any:
    from . import calls, is_keras3, model as models

    in_callback = calls.in_loop(model)
    if not in_callback and not all_devices:
        models.average_moving_statistics(model)

    def action(path: Any) -> Any:
        traced = name == "export" and not is_keras3(model)
        hidden = _without_functions(model) if traced else contextlib.nullcontext()
        with models.restored(model), hidden:
            return getattr(models.base_of(model), name)(model, path, *args, **kwargs)

    needs = bytes_of(model, name == "save")
    return write(filepath, action, in_callback, all_devices, one_file, folder, needs)


@contextlib.contextmanager
def _without_functions(model: Any) -> Iterator[None]:
    """The functions that run steps are not there within the block. `export` of Keras 2.12 writes
    them too; for that it traces them anew, and the class of Keras cannot take our batches.
    """
    names = ("train_function", "test_function", "predict_function", "train_tf_function")
    kept = {name: getattr(model, name, None) for name in names}
    kept = {name: function for name, function in kept.items() if function is not None}
    for name in kept:
        setattr(model, name, None)
        # A layer goes on tracking what its attribute was.
        model._delete_tracking(name)
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(model, name, function)
