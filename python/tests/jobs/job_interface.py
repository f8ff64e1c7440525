"""Names, signatures and defaults that scripts rely on, as the documentation of Tarantella has
them.
"""

import inspect
import unittest.mock

from cases import RANK, SIZE, case, keras, run
from expect import raises

import numpy as np
import tarantella as tnt
from tarantella.keras import flavour, is_keras3

EMPTY = inspect.Parameter.empty


def defaults(function):
    """The parameters of a function, without `self`, and their defaults."""
    return {
        name: each.default
        for name, each in inspect.signature(function).parameters.items()
        if name != "self" and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    }


@case
def names_of_the_package():
    names = (
        "init",
        "get_rank",
        "get_size",
        "get_master_rank",
        "is_master_rank",
        "get_local_rank",
        "get_local_size",
        "Model",
        "Sequential",
        "ParallelStrategy",
        "Barrier",
        "Allreduce",
        "Broadcast",
        "Allgatherv",
        "Group",
        "ReductionOp",
        "get_group_master_rank",
        "allreduce",
        "broadcast",
        "allgather",
        "barrier",
        "config",
        "batch_weight",
        "RankFailure",
        "regroup",
        "data",
        "keras",
        "models",
        "metrics",
        "optimizers",
    )
    missing = [name for name in names if not hasattr(tnt, name)]
    assert not missing, missing
    assert isinstance(tnt.__version__, str)
    for name in (
        "load_model",
        "save_model",
        "model_from_config",
        "model_from_json",
        "model_from_yaml",
        "clone_model",
    ):
        assert callable(getattr(tnt.models, name)), name
    assert callable(tnt.keras.callbacks.Callback) and callable(tnt.metrics.register)
    assert (
        callable(tnt.data.Dataset)
        and callable(tnt.data.distribute)
        and callable(tnt.optimizers.Optimizer)
    )


@case
def signatures():
    wanted = {
        tnt.init: {"devices_per_node": None},
        tnt.keras.callbacks.Callback.__init__: {
            "callback": EMPTY,
            "aggregate_logs": True,
            "run_on_all_ranks": True,
        },
        tnt.data.distribute: {
            "dataset": EMPTY,
            "preprocess": None,
            "num_parallel_calls": tnt.data.AUTOTUNE,
        },
        tnt.models.load_model: {"filepath": EMPTY, "custom_objects": None, "compile": True},
        tnt.models.save_model: {"model": EMPTY, "filepath": EMPTY, "tnt_save_all_devices": False},
        tnt.models.model_from_json: {"json_string": EMPTY, "custom_objects": None},
        tnt.models.model_from_config: {"config": EMPTY, "custom_objects": None},
        tnt.Allreduce.__init__: {"inputs": EMPTY, "op": tnt.ReductionOp.SUM, "group": None},
        tnt.Broadcast.__init__: {"inputs": EMPTY, "root": EMPTY, "group": None},
        tnt.Allgatherv.__init__: {"inputs": EMPTY, "group": None},
        tnt.Barrier.__init__: {"group": None},
    }
    for function, expected in wanted.items():
        assert defaults(function) == expected, (function, defaults(function), expected)
    assert list(defaults(tnt.allreduce).items())[:2] == [("x", EMPTY), ("op", "sum")], defaults(
        tnt.allreduce
    )
    assert list(defaults(tnt.broadcast).items())[:2] == [("x", EMPTY), ("root", 0)], defaults(
        tnt.broadcast
    )
    model = inspect.signature(type(tnt.Model).__call__)
    assert [(name, each.default) for name, each in list(model.parameters.items())[1:]] == [
        ("model", EMPTY),
        ("parallel_strategy", tnt.ParallelStrategy.DATA),
        ("num_pipeline_stages", 1),
        ("sync_batch_norm", False),
    ], model
    dataset = defaults(tnt.data.Dataset.__init__)
    assert (
        list(dataset)[:3] == ["dataset", "num_ranks", "rank"]
        and dataset["num_ranks"] is dataset["rank"] is None
    )
    assert {each.name for each in tnt.ReductionOp} >= {"SUM", "PROD", "MIN", "MAX", "AND", "OR"}
    assert {each.name for each in tnt.ParallelStrategy} == {"DATA", "PIPELINING", "ALL"}


@case
def ranks_and_the_master():
    assert (tnt.get_rank(), tnt.get_size()) == (RANK, SIZE)
    for value in (
        tnt.get_rank(),
        tnt.get_size(),
        tnt.get_master_rank(),
        tnt.get_local_rank(),
        tnt.get_local_size(),
    ):
        assert type(value) is int
    assert tnt.get_master_rank() == 0 and tnt.is_master_rank() is (RANK == 0)
    tnt.init()
    tnt.init()


@case
def arguments_of_the_loops():
    """Every argument of the documentation is taken by the procedure, and by no other."""
    x, y = np.zeros((8, 2), "float32"), np.zeros((8, 1), "float32")
    model = tnt.Model(keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)]))
    model.compile("sgd", "mse")
    model.fit(
        x,
        y,
        batch_size=8,
        verbose=0,
        tnt_micro_batch_size=None,
        tnt_validation_micro_batch_size=None,
        tnt_distribute_dataset=True,
        tnt_distribute_validation_dataset=True,
    )
    model.fit(x, y, 8, 1, 0)
    model.evaluate(x, y, verbose=0, tnt_micro_batch_size=None, tnt_distribute_dataset=True)
    model.predict(
        x, verbose=0, tnt_micro_batch_size=None, tnt_distribute_dataset=True, tnt_gather="all"
    )
    for call in (
        lambda: model.fit(x, y, verbose=0, tnt_gather="all"),
        lambda: model.fit(x, y, verbose=0, tnt_micro=1),
        lambda: model.evaluate(x, y, verbose=0, tnt_gather="all"),
        lambda: model.predict(x, verbose=0, tnt_validation_micro_batch_size=1),
    ):
        with raises((TypeError, ValueError)):
            call()
    with raises(NotImplementedError, "PIPELINING"):
        tnt.Model(model, parallel_strategy=tnt.ParallelStrategy.PIPELINING)
    with raises(TypeError):
        tnt.Model(model, pipeline=True)
    with raises(TypeError):
        tnt.Model("model")
    assert (
        isinstance(model, tnt.Model)
        and isinstance(model, keras.Sequential)
        and tnt.Model(model) is model
    )
    assert type(model).__name__ == "Sequential" and not isinstance(keras.Sequential(), tnt.Model)


@case
def models_of_another_backend_are_refused():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    if not is_keras3(model):
        return
    # Keras itself asks for more packages with another one.
    with unittest.mock.patch.object(flavour(model).backend, "backend", lambda: "numpy"):
        with raises(ValueError, "KERAS_BACKEND is numpy", "set KERAS_BACKEND=tensorflow"):
            tnt.Model(model)
    tnt.Model(model)


if __name__ == "__main__":
    run()
