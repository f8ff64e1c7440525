"""predict against plain Keras: order, bits, what is gathered where, and how often data begin."""

from cases import RANK, SIZE, case, digits, keras, run
from expect import raises
from job_loops import batched, perceptron, reference

import numpy as np
import tarantella as tnt
import tensorflow as tf


@case
def predict_has_the_bits_of_plain_keras():
    x, _ = digits(131, "float64", 8)
    for number, batch in ((131, 64), (131, 10), (65, 64), (2, 1), (1, 1), (7, 32)):
        plain = reference(lambda: perceptron().predict(x[:number], batch_size=batch, verbose=0))
        mine = tnt.Model(perceptron()).predict(x[:number], batch_size=batch, verbose=0)
        assert mine.shape == plain.shape and (mine == plain).all(), (number, batch)
    model = tnt.Model(perceptron())
    for given in (batched(131, 10), batched(131, 10).map(lambda image, label: image)):
        assert (
            model.predict(given, verbose=0)
            == reference(lambda: perceptron().predict(x, batch_size=10, verbose=0))
        ).all()
    few = model.predict(batched(131, 10), steps=4, verbose=0)
    assert (few == reference(lambda: perceptron().predict(x[:40], batch_size=10, verbose=0))).all()


@case
def predict_begins_a_dataset_as_often_as_plain_keras():
    def shuffled(number, change):
        # Each iteration has other samples, so that one more or less would show.
        samples = tf.data.Dataset.from_tensor_slices(digits(number, "float64", 8))
        return change(samples.shuffle(number, seed=3))

    def called(model, samples, steps, wrap=lambda dataset: dataset, **more):
        dataset, found = wrap(samples), []
        for number in steps:
            found.append(model.predict(dataset, steps=number, verbose=0, **more))
            found.append(model.evaluate(dataset, steps=1, verbose=0, **more))
        return found

    def batch(samples):
        return samples.batch(4 * SIZE)

    def equal(found, plain):
        for mine, his in zip(found, plain):
            assert np.shape(mine) == np.shape(his), (np.shape(mine), np.shape(his))
            assert np.allclose(mine, his, rtol=0, atol=1e-10), (mine, his)

    for number, steps, change in (
        (70, (2, None, 5, 1, 4, None), lambda samples: samples.batch(16)),
        # More steps than there are batches, and ranks without a batch.
        (70, (9, 2), lambda samples: samples.batch(16)),
        (20, (None, 1, 3, None), lambda samples: samples.batch(20)),
        (70, (3, 1, 3), lambda samples: samples.batch(16).repeat()),
        (70, (3, None, 1), lambda samples: samples.batch(16).filter(lambda *batch: True)),
    ):
        plain = reference(lambda: called(perceptron(), shuffled(number, change), steps))
        equal(called(tnt.Model(perceptron()), shuffled(number, change), steps), plain)
    for steps in ((2, None, 1), (5, 2)):
        plain = reference(
            lambda: called(perceptron(), shuffled(18 * SIZE, lambda each: each), steps, batch)
        )
        samples = shuffled(18 * SIZE, lambda each: each)
        model = tnt.Model(perceptron())
        equal(called(model, samples, steps, tnt_micro_batch_size=4), plain)
        samples = shuffled(18 * SIZE, lambda each: each)
        equal(called(model, samples, steps, batch, tnt_distribute_dataset=False), plain)


@case
def predict_gathers_where_told():
    x, _ = digits(50, "float64", 8)
    model = tnt.Model(perceptron())
    whole = model.predict(x, batch_size=8, verbose=0)
    master = model.predict(x, batch_size=8, verbose=0, tnt_gather="master")
    assert (master == whole).all() if RANK == 0 else master is None
    own = model.predict(x, batch_size=8, verbose=0, tnt_gather="none")
    wanted = np.concatenate([whole[begin : begin + 8] for begin in range(8 * RANK, 50, 8 * SIZE)])
    assert (own == wanted).all()
    with raises(ValueError, "all, master or none"):
        model.predict(x, tnt_gather="some")
    for number in (50, 49, 12 * SIZE + 1):
        sliced = model.predict(
            tf.data.Dataset.from_tensor_slices(x[:number]), tnt_micro_batch_size=4, verbose=0
        )
        assert sliced.shape == (number, 10) and np.allclose(sliced, whole[:number], atol=1e-12), (
            number
        )
    local = model.predict(x[: 3 + RANK], verbose=0, tnt_distribute_dataset=False)
    assert len(local) == 3 + RANK


@case
def predict_of_several_outputs():
    keras.backend.set_floatx("float64")
    keras.utils.set_random_seed(3)
    inner = keras.layers.Input((4,))
    one, other = keras.layers.Dense(3)(inner), keras.layers.Dense(2)(inner)
    model = keras.Model(inner, {"one": one, "other": other})
    x = np.random.RandomState(0).rand(23, 4)
    plain = model.predict(x, batch_size=5, verbose=0)
    mine = tnt.Model(model).predict(x, batch_size=5, verbose=0)
    assert sorted(mine) == ["one", "other"] and all(
        (mine[name] == plain[name]).all() for name in plain
    )


if __name__ == "__main__":
    run()
