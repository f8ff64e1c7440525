"""Saving and loading: what the master writes, plain Keras reads; ranks need no file system in
common.
"""

import contextlib
import errno
import os
import resource
import shutil
import tempfile
import unittest.mock

from cases import KERAS3, RANK, SIZE, case, digits, keras, run, same_bits
from expect import raises

import numpy as np
import tarantella as tnt
import tensorflow as tf
from tarantella import collectives
from tarantella.keras import saving

MASTER = RANK == 0
FORMS = ["model.keras", "model.h5"] + ([] if KERAS3 else ["folder"])


def made(seed=1):
    keras.backend.set_floatx("float32")
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(12, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.Adam(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def data(number=96):
    return digits(number, "float32", 8)


def trained():
    model = tnt.Model(made())
    x, y = data()
    model.fit(x, y, batch_size=32, epochs=2, verbose=0)
    return model


def in_own_folder(function):
    """Runs a case in a folder of each rank's own: as if ranks shared no file system."""

    def inside():
        before, own = os.getcwd(), tempfile.mkdtemp()
        os.chdir(own)
        try:
            function()
        finally:
            os.chdir(before)
            shutil.rmtree(own)

    inside.__name__ = function.__name__
    return inside


def equal(one, other):
    return all((left == right).all() for left, right in zip(one.get_weights(), other.get_weights()))


@case
@in_own_folder
def master_writes_and_all_ranks_read():
    model = trained()
    x, y = data()
    for form in FORMS:
        for _ in range(2):
            model.save(form)
            assert os.listdir(".") == ([form] if MASTER else []), os.listdir(".")
        loaded = tnt.models.load_model(form)
        assert isinstance(loaded, tnt.Model) and equal(loaded, model), form
        assert np.allclose(
            loaded.evaluate(x, y, verbose=0), model.evaluate(x, y, verbose=0), atol=1e-6
        )
        if MASTER:
            plain = keras.models.load_model(form)
            assert equal(plain, model) and not isinstance(plain, tnt.Model)
            assert (
                type(plain.optimizer).__module__.split(".")[0] in ("keras", "tf_keras")
                and type(plain).__name__ == "Sequential"
            )
            os.remove(form) if os.path.isfile(form) else shutil.rmtree(form)
        assert isinstance(model, tnt.Model) and type(model.optimizer).__mro__[1:] != ()


@case
@in_own_folder
def loaded_model_goes_on_where_it_stopped():
    x, y = data()
    whole = trained()
    whole.save("model.keras")
    loaded = tnt.models.load_model("model.keras")
    iterations = int(np.asarray(loaded.optimizer.iterations))
    assert iterations == 6, iterations
    for model in (whole, loaded):
        keras.utils.set_random_seed(5)
        model.fit(x, y, batch_size=32, epochs=1, verbose=0, shuffle=False)
    assert all(
        np.allclose(one, other, atol=1e-6)
        for one, other in zip(whole.get_weights(), loaded.get_weights())
    )
    loaded.compile("sgd", "mse")
    same_bits(loaded.get_weights())


@case
@in_own_folder
def weights_are_saved_and_loaded():
    model = trained()
    for form in ["w.weights.h5"] + ([] if KERAS3 else ["checkpoint_of_tf"]):
        model.save_weights(form)
        assert MASTER == bool(os.listdir(".")), os.listdir(".")
        other = tnt.Model(made(7))
        assert not equal(other, model)
        other.load_weights(form)
        assert equal(other, model), form
        if MASTER:
            plain = made(8)
            plain.load_weights(form)
            assert equal(plain, model)


@case
@in_own_folder
def export_is_written_by_the_master():
    model = trained()
    if not hasattr(keras.Model, "export"):
        # Keras 2.10 and 2.11.
        raises(AttributeError, lambda: model.export("exported"), "export")
        return
    model.export("exported")
    assert os.path.isdir("exported") == MASTER
    if MASTER:
        assert os.listdir(".") == ["exported"]
        served = tf.saved_model.load("exported")
        x = data()[0][:4]
        assert np.allclose(served.serve(x).numpy(), model(x).numpy(), atol=1e-5)


@case
@in_own_folder
def every_rank_writes_if_told():
    model = trained()
    model.save("own{}.keras".format(RANK), tnt_save_all_devices=True)
    tnt.models.save_model(model, "other.keras", tnt_save_all_devices=True)
    model.save_weights("own.weights.h5", tnt_save_all_devices=True)
    assert sorted(os.listdir(".")) == sorted(
        ["own{}.keras".format(RANK), "other.keras", "own.weights.h5"]
    )


@case
@in_own_folder
def errors_of_the_master_are_raised_on_all_ranks():
    model = trained()
    with raises(OSError):
        model.save("/proc/nowhere/model.keras")
    with raises((OSError, ValueError), "absent.keras"):
        tnt.models.load_model("absent.keras")
    if MASTER:
        os.makedirs("taken.keras")
    with raises(IsADirectoryError, "taken.keras"):
        model.save("taken.keras")
    with raises(Exception):
        model.save("model.unknown" if KERAS3 else "/proc/nowhere/folder")
    assert os.listdir(".") == (["taken.keras"] if MASTER else []), os.listdir(".")


@case
@in_own_folder
def failed_save_leaves_the_former_file():
    model = trained()
    for form in FORMS:
        model.save(form)
        former = files_of(form)
        broken = model.layers[-1]
        kept = type(broken).get_config
        type(broken).get_config = lambda self: 1 / 0
        try:
            with raises(Exception):
                model.save(form)
        finally:
            type(broken).get_config = kept
        assert os.listdir(".") == ([form] if MASTER else []), os.listdir(".")
        assert files_of(form) == former
        if MASTER:
            os.remove(form) if os.path.isfile(form) else shutil.rmtree(form)


@contextlib.contextmanager
def room_for(number):
    """Files of this process may have so many bytes: to it the disk is full. Python ignores the
    signal that comes with that.
    """
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (number, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)


def on_a_full_disk(write, form, *said, room=2000):
    """The error of a file for which the master has no room, on all ranks."""
    with room_for(room) if MASTER else contextlib.nullcontext():
        with raises(OSError, "make room there", "rank 0 on", form, *said) as caught:
            write(form)
    assert caught.error.errno == errno.EFBIG, caught.error


@case
@in_own_folder
def full_disk_is_told_and_leaves_the_former_file():
    model = trained()
    for form in FORMS + ["w.weights.h5"]:
        write = model.save_weights if "weights" in form else model.save
        write(form)
        former = files_of(form)
        model.fit(*data(), batch_size=32, verbose=0)
        on_a_full_disk(write, form, "is as it was")
        assert os.listdir(".") == ([form] if MASTER else []), os.listdir(".")
        assert files_of(form) == former
        # The ranks have not parted.
        write(form)
        assert not MASTER or files_of(form) != former
        if MASTER:
            os.remove(form) if os.path.isfile(form) else shutil.rmtree(form)


@case
@in_own_folder
def disk_that_becomes_full_is_told():
    model = trained()
    with unittest.mock.patch.object(saving, "bytes_of", lambda *arguments: 0):
        for form in FORMS + ["w.weights.h5"]:
            write = model.save_weights if "weights" in form else model.save
            write(form)
            former = files_of(form)
            # Within the first words of HDF5, within tensors, and near the end.
            size = len(former[form]) if form.endswith(".h5") and MASTER else 2001
            for room in (100, 2000, size // 2, size - 1):
                on_a_full_disk(write, form, "is as it was", room=room)
                assert files_of(form) == former
        if not KERAS3:
            # Several files, which are written where they belong.
            on_a_full_disk(model.save_weights, "checkpoint_of_tf", "not complete")
        assert not [name for name in os.listdir(".") if name.startswith(".")], os.listdir(".")


@case
@in_own_folder
def full_disk_where_files_are_read_is_told():
    model = trained()
    model.save("model.keras")
    if SIZE == 1:
        return
    last = RANK == SIZE - 1
    with room_for(2000) if last else contextlib.nullcontext():
        with raises(OSError, "make room there", "rank {} on".format(SIZE - 1)):
            tnt.models.load_model("model.keras")
    assert equal(tnt.models.load_model("model.keras"), model)


def files_of(path):
    """The bytes of what stands there, by name."""
    if not os.path.isdir(path):
        paths = [path] if os.path.exists(path) else []
    else:
        paths = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    found = {}
    for each in paths:
        with open(each, "rb") as file:
            found[each] = file.read()
    return found


@case
def configurations_and_clones():
    model = trained()
    x, y = data()
    plain = made()
    parts = [
        tnt.models.clone_model(model),
        tnt.models.model_from_json(model.to_json()),
        type(model).from_config(model.get_config()),
    ]
    if KERAS3:
        # TensorFlow's name for Keras 3.0 has no `saving`.
        saving = getattr(keras, "saving", keras.utils)
        parts.append(tnt.models.model_from_config(saving.serialize_keras_object(plain)))
    else:
        parts.append(
            tnt.models.model_from_config({"class_name": "Sequential", "config": model.get_config()})
        )
    for made_of_it in parts:
        assert isinstance(made_of_it, tnt.Model) and len(made_of_it.layers) == len(model.layers)
        made_of_it.set_weights(model.get_weights())
        made_of_it.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        made_of_it.fit(x, y, batch_size=32, verbose=0)
        same_bits(made_of_it.get_weights())
    for name in ("to_yaml",):
        with raises(RuntimeError, "to_json"):
            getattr(model, name)()
    with raises(RuntimeError, "model_from_json"):
        tnt.models.model_from_yaml("")


@case
@in_own_folder
def plain_models_are_saved_by_the_master_too():
    tnt.models.save_model(made(), "plain.keras")
    assert os.path.exists("plain.keras") == MASTER


@case
@in_own_folder
def custom_objects_are_found():
    @keras.utils.register_keras_serializable("cases")
    class Doubled(keras.layers.Layer):
        def call(self, x):
            return 2 * x

    model = tnt.Model(
        keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2), Doubled()])
    )
    model.compile("sgd", "mse")
    model.save("model.keras")
    loaded = tnt.models.load_model("model.keras", custom_objects={"Doubled": Doubled})
    assert isinstance(loaded.layers[-1], Doubled) and equal(loaded, model)
    assert not getattr(tnt.models.load_model("model.keras", compile=False), "optimizer", None)


if __name__ == "__main__":
    assert collectives.allgather_object(RANK) == list(range(SIZE))
    run()
