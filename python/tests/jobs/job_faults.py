"""Faults that are planted into the package within a case; the checks of the other jobs have to find
each.

One more, a rank that stops alone, makes the others wait for ever, so it has a job of its own in
failures.py.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import types
from typing import Any, Callable, Iterator

import job_control
import job_loops
import job_training
from cases import RANK, SIZE, case, digits, keras, np, run, tf, tnt
from expect import raises

from tarantella import collectives, data, errors, library, operators
from tarantella.keras import arrays, metrics, step, weights

HERE = os.path.dirname(os.path.abspath(__file__))


@contextlib.contextmanager
def planted(module: Any, name: str, replacement: Any) -> Iterator[None]:
    """A function of a module is another one within the block."""
    kept = getattr(module, name)
    setattr(module, name, replacement)
    try:
        yield
    finally:
        setattr(module, name, kept)


def found(check: Callable[[], Any], *kinds: type) -> bool:
    """Whether a check fails on some rank, by an exception of these kinds."""
    try:
        check()
        failed = False
    except kinds or AssertionError:
        failed = True
    return any(collectives.allgather_object(failed))


def last_batch_of_three() -> None:
    """No two ranks have as many samples of the last batch, or some have none."""
    job_training.against_plain(
        job_training.perceptron, job_training.sgd, job_training.numbers(51), loss="mse"
    )


@case
def nothing_is_found_without_a_fault() -> None:
    last_batch_of_three()
    job_training.weights_of_rank_0_count()
    job_control.moving_statistics_are_averaged()


@case
def forgotten_scale() -> None:
    for scale in (1.0, 1.0 / SIZE):
        with planted(step, "weight", lambda value=scale: tf.constant(value, tf.float64)):
            assert SIZE == 1 or found(last_batch_of_three), scale


@case
def slice_off_by_one() -> None:
    between, more = data._between, 1 if RANK == 0 else 0

    def shifted(leaf: Any, begin: Any, end: Any) -> Any:
        return between(leaf, begin + more, end + more)

    with planted(data, "_between", shifted):
        assert SIZE == 1 or found(job_loops.remainders_of_datasets)


@case
def seed_of_one_rank() -> None:
    if SIZE == 1:
        return
    x, y = digits(60, "float64", 8)
    model = tnt.Model(job_loops.perceptron())
    with planted(arrays, "order_seed", lambda told: None):
        tf.random.set_seed(100 + RANK)
        with raises(errors.DataMismatch, "different batches"):
            model.fit(x, y, batch_size=20, verbose=0)
    tf.random.set_seed(100 + RANK)
    shuffled = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(60).batch(20)
    with raises(errors.DataMismatch, "different batches"):
        model.fit(shuffled, verbose=0)


@case
def skipped_broadcast() -> None:
    with planted(weights, "broadcast", lambda *arguments, **named: None):
        assert SIZE == 1 or found(
            job_training.weights_of_rank_0_count, AssertionError, tnt.DriftError
        )


@case
def averaged_metric() -> None:
    def averaged(model: Any) -> Any:
        own = metrics.plain_results(model)
        of_all = collectives.allgather_object(own)
        return {name: np.mean([each[name] for each in of_all]) for name in own}

    with planted(metrics, "global_results", averaged):
        assert SIZE == 1 or found(job_loops.evaluate_of_any_size)


@case
def moving_statistics_not_averaged() -> None:
    with planted(weights, "average", lambda *arguments: None):
        assert SIZE == 1 or found(
            job_control.moving_statistics_are_averaged, AssertionError, tnt.DriftError
        )


def stateful_operators(folder: str) -> Any:
    """The operators, built from a copy of their source that declares them stateful."""
    sources_of = os.path.join(HERE, "..", "..", "..")
    for name in ("tarantella-tf", "include"):
        shutil.copytree(os.path.join(sources_of, name), os.path.join(folder, name))
    shape = "  TF_OpDefinitionBuilderSetShapeInferenceFunction("
    declared = "void TF_OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder *, bool);"
    places = 0
    for name in ("kernel.h", "operators.cc", "batches.cc"):
        path = os.path.join(folder, "tarantella-tf", "src", name)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        # Those of the package are registered too.
        text = text.replace('"Tarantella', '"Stateful')
        text = text.replace("namespace {", 'extern "C" {}\nnamespace {{'.format(declared))
        places += text.count(shape)
        more = "  TF_OpDefinitionBuilderSetIsStateful(builder, true);\n"
        text = text.replace(shape, more + shape)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    assert places == 1
    shutil.copy(library.path(), os.path.join(folder, "libgaspi.so.1"))
    build = os.path.join(folder, "tarantella-tf", "build.sh")
    subprocess.run(["sh", build, folder], check=True)
    built = tf.load_op_library(os.path.join(folder, "libtarantella_tf.so"))
    return types.SimpleNamespace(
        tarantella_start=built.stateful_start, tarantella_finish=built.stateful_finish
    )


@case
def stateful_operator() -> None:
    folder = tempfile.mkdtemp()
    try:
        chained = stateful_operators(folder)
        with planted(operators, "load", lambda: chained):
            assert found(job_control.gradients_are_handed_over_in_any_order)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    run()
