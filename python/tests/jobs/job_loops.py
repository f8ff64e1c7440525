"""fit, evaluate, predict and their on_batch forms against plain Keras, for each kind of data; and
what they refuse.
"""

import contextlib
import gc
import io
import weakref

from cases import RANK, SIZE, case, close, digits, keras, run, same_bits
from expect import logged, raises

import numpy as np
import tarantella as tnt
import tensorflow as tf
from tarantella import collectives, data, errors


def perceptron(inputs=1, seed=3):
    """A small model in f64, compiled."""
    keras.backend.set_floatx("float64")
    keras.utils.set_random_seed(seed)
    parts = [
        keras.layers.Input((8, 8, 1), name="image{}".format(number)) for number in range(inputs)
    ]
    hidden = [keras.layers.Flatten()(part) for part in parts]
    together = hidden[0] if inputs == 1 else keras.layers.Concatenate()(hidden)
    # Names of its own: rank 0 makes more models than the others, and counted names would differ.
    output = keras.layers.Dense(10, name="out")(
        keras.layers.Dense(16, activation="tanh", name="hidden")(together)
    )
    model = keras.Model(parts[0] if inputs == 1 else parts, output)
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def reference(function):
    """What plain Keras gives, computed by rank 0."""
    return collectives.broadcast_object(function() if RANK == 0 else None)


def trained(model, **arguments):
    """Weights and history of a fit."""
    keras.utils.set_random_seed(11)
    history = model.fit(verbose=0, **arguments).history
    return model.get_weights(), history


def same_history(mine, plain, tolerance=1e-10):
    assert list(mine) == list(plain), (list(mine), list(plain))
    for name, values in plain.items():
        assert np.allclose(mine[name], values, rtol=0, atol=tolerance), (name, mine[name], values)


def equals_plain(arguments, inputs=1):
    """A fit by all ranks has weights and history of plain Keras. `arguments` is called for fresh
    data each time.
    """
    plain_weights, plain_history = reference(lambda: trained(perceptron(inputs), **arguments()))
    weights, history = trained(tnt.Model(perceptron(inputs)), **arguments())
    close(weights, plain_weights, 1e-12)
    same_history(history, plain_history)
    same_bits(weights)
    assert len({str(each) for each in collectives.allgather_object(history)}) == 1, (
        "histories of the ranks differ"
    )


def batched(number, batch, **more):
    return tf.data.Dataset.from_tensor_slices(digits(number, "float64", 8)).batch(batch, **more)


# ==== Data sets ====


@case
def remainders_of_datasets():
    for number, batch in ((285, 64), (237, 100), (193, 64)):
        equals_plain(
            lambda: dict(x=batched(number, batch), epochs=2, validation_data=batched(101, 64))
        )


@case
def dropped_remainder_and_repeated_datasets():
    equals_plain(lambda: dict(x=batched(150, 64, drop_remainder=True), epochs=2))
    equals_plain(
        lambda: dict(
            x=batched(150, 64).repeat(),
            epochs=2,
            steps_per_epoch=4,
            validation_data=batched(100, 32).repeat(),
            validation_steps=2,
        )
    )


@case
def shuffled_datasets():
    def arguments():
        tf.random.set_seed(42)
        return dict(
            x=tf.data.Dataset.from_tensor_slices(digits(150, "float64", 8)).shuffle(150).batch(64),
            epochs=3,
        )

    equals_plain(arguments)


@case
def unbatched_datasets():
    plain = reference(lambda: trained(perceptron(), x=batched(100, 4 * SIZE), epochs=2))
    samples = tf.data.Dataset.from_tensor_slices(digits(100, "float64", 8))
    for given in (samples, samples.batch(4 * SIZE)):
        weights, history = trained(
            tnt.Model(perceptron()), x=given, epochs=2, tnt_micro_batch_size=4
        )
        close(weights, plain[0], 1e-12)
        same_history(history, plain[1])
    model = tnt.Model(perceptron())
    with raises(ValueError, str(5 * SIZE), str(4 * SIZE + 1)):
        model.fit(samples.batch(4 * SIZE + 1), tnt_micro_batch_size=5, verbose=0)
    with raises(ValueError, str(4 * SIZE), "tnt_micro_batch_size=5"):
        model.fit(samples.batch(4 * SIZE, drop_remainder=True), tnt_micro_batch_size=5, verbose=0)
    with raises(ValueError, "dataset.batch(64)", "tnt_micro_batch_size"):
        model.fit(samples, verbose=0)
    history = model.fit(
        batched(60, 30), validation_data=samples, tnt_validation_micro_batch_size=3, verbose=0
    ).history
    assert np.isclose(
        history["val_loss"][0],
        model.evaluate(samples, tnt_micro_batch_size=7, verbose=0)[0],
        atol=1e-10,
    )


@case
def unbuilt_model_decides_by_the_first_dimension():
    def unbuilt():
        keras.utils.set_random_seed(5)
        model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return tnt.Model(model)

    samples = tf.data.Dataset.from_tensor_slices(digits(40, "float64", 8))
    with logged() as lines:
        one = trained(unbuilt(), x=samples, tnt_micro_batch_size=3)[0]
        other = trained(unbuilt(), x=samples.batch(3 * SIZE), tnt_micro_batch_size=3)[0]
    close(one, other, 1e-12)
    assert any("single samples" in line for line in lines) and any(
        "batched" in line for line in lines
    ), lines


@case
def distributed_preprocessing():
    images, labels = digits(130, "float64", 8)

    def look_up(number):
        return tf.gather(tf.constant(images), number), tf.gather(tf.constant(labels), number)

    numbers = tf.data.Dataset.range(130).batch(64)
    plain = reference(lambda: trained(perceptron(), x=batched(130, 64), epochs=2))
    weights, history = trained(
        tnt.Model(perceptron()), x=tnt.data.distribute(numbers, look_up), epochs=2
    )
    close(weights, plain[0], 1e-12)
    same_history(history, plain[1])
    result = tnt.Model(perceptron()).evaluate(tnt.data.distribute(numbers, look_up), verbose=0)
    assert np.allclose(
        result, reference(lambda: perceptron().evaluate(batched(130, 64), verbose=0)), atol=1e-10
    )


# ==== Arrays ====


@case
def arrays_in_the_order_of_plain_keras():
    x, y = digits(150, "float64", 8)
    equals_plain(lambda: dict(x=x, y=y, batch_size=64, epochs=3, validation_split=0.2))
    equals_plain(lambda: dict(x=x, y=y, epochs=1, shuffle=False))
    equals_plain(
        lambda: dict(
            x=tf.constant(x),
            y=tf.constant(y),
            batch_size=50,
            epochs=2,
            steps_per_epoch=2,
            validation_data=(x[:33], y[:33]),
            validation_batch_size=32,
        )
    )


@case
def weights_of_samples_and_classes():
    x, y = digits(130, "float64", 8)
    weights = np.linspace(0.1, 2, 130)
    classes = {number: 0.5 + 0.1 * number for number in range(10)}
    equals_plain(
        lambda: dict(
            x=x,
            y=y,
            sample_weight=weights,
            batch_size=64,
            validation_data=(x[:20], y[:20], weights[:20]),
        )
    )
    equals_plain(lambda: dict(x=x, y=y, class_weight=classes, batch_size=64))
    equals_plain(lambda: dict(x=batched(130, 64), class_weight=classes))


@case
def dicts_and_lists_of_arrays():
    x, y = digits(100, "float64", 8)
    equals_plain(lambda: dict(x=[x, x[::-1].copy()], y=y, batch_size=32), 2)
    equals_plain(lambda: dict(x={"image0": x, "image1": x[::-1].copy()}, y=y, batch_size=32), 2)
    equals_plain(
        lambda: dict(
            x=tf.data.Dataset.from_tensor_slices(({"image0": x, "image1": -x}, y)).batch(32)
        ),
        2,
    )


# ==== Each rank its own data ====


@case
def own_data_of_each_rank():
    x, y = digits(24 * SIZE, "float64", 8)
    begin, count = data.bounds(24 * SIZE, SIZE, RANK)
    plain = reference(
        lambda: trained(
            perceptron(),
            x=x.reshape((SIZE, 3, 8) + x.shape[1:]).swapaxes(0, 1).reshape(x.shape),
            y=y.reshape((SIZE, 3, 8)).swapaxes(0, 1).reshape(y.shape),
            batch_size=8 * SIZE,
            shuffle=False,
        )
    )
    own = tf.data.Dataset.from_tensor_slices(
        (x[begin : begin + count], y[begin : begin + count])
    ).batch(8)
    with logged() as lines:
        weights, history = trained(tnt.Model(perceptron()), x=own, tnt_distribute_dataset=False)
    assert any("its own data" in line for line in lines), lines
    close(weights, plain[0], 1e-12)
    same_history(history, plain[1])


@case
def own_data_of_unequal_lengths():
    model = tnt.Model(perceptron())
    own = batched(16 + 8 * RANK, 8)
    with logged() as lines:
        model.fit(own, tnt_distribute_dataset=False, verbose=0)
    assert SIZE == 1 or any("first 2" in line and line.startswith("WARNING") for line in lines), (
        lines
    )
    same_bits(model.get_weights())
    with raises(ValueError, "assert_cardinality", "steps_per_epoch"):
        model.fit(own.filter(lambda *element: True), tnt_distribute_dataset=False, verbose=0)
    model.fit(
        own.filter(lambda *element: True),
        tnt_distribute_dataset=False,
        steps_per_epoch=2,
        verbose=0,
    )
    result = model.evaluate(own, tnt_distribute_dataset=False, verbose=0)
    together = [digits(16 + 8 * rank, "float64", 8) for rank in range(SIZE)]
    x, y = (np.concatenate(part) for part in zip(*together))
    assert np.allclose(result, model.evaluate(x, y, verbose=0), atol=1e-10)


# ==== evaluate, single batches ====


@case
def evaluate_of_any_size():
    x, y = digits(131, "float64", 8)
    for number, batch in ((131, 64), (65, 64), (2, 64), (1, 1), (5, 2)):
        plain = reference(
            lambda: perceptron().evaluate(x[:number], y[:number], batch_size=batch, verbose=0)
        )
        mine = tnt.Model(perceptron()).evaluate(x[:number], y[:number], batch_size=batch, verbose=0)
        assert np.allclose(mine, plain, rtol=0, atol=1e-10), (number, batch, mine, plain)
    model = tnt.Model(perceptron())
    as_dict = model.evaluate(batched(131, 64), steps=2, return_dict=True, verbose=0)
    plain = reference(
        lambda: perceptron().evaluate(batched(131, 64), steps=2, return_dict=True, verbose=0)
    )
    same_history(as_dict, plain)


@case
def datasets_that_come_again_are_divided_once():
    def shared():
        # Each iteration has other samples, so that one more or less would show.
        samples = tf.data.Dataset.from_tensor_slices(digits(130, "float64", 8))
        return samples.shuffle(130, seed=3).take(70).batch(16)

    def called(models, dataset):
        found = []
        for number, steps in enumerate([None] * 3 + [2] + [None] * 3):
            found.append(models[number % 2].evaluate(dataset, steps=steps, verbose=0))
        for number in range(3):
            found.append(models[number % 2].predict(dataset, verbose=0))
        return found

    plain = reference(lambda: called([perceptron(), perceptron(seed=4)], shared()))
    models, dataset = [tnt.Model(perceptron()), tnt.Model(perceptron(seed=4))], shared()
    divide, divided = data.divide, []

    def noted(*arguments, **named):
        divided.append(divide(*arguments, **named))
        return divided[-1]

    data.divide = noted
    try:
        found = called(models, dataset)
    finally:
        data.divide = divide
    assert np.allclose(found[:7], plain[:7], rtol=0, atol=1e-10), (found[:7], plain[:7])
    assert all((mine == his).all() for mine, his in zip(found[7:], plain[7:]))
    # At the first and the second time, and so behind an evaluation that left batches.
    assert len(divided) == 6, len(divided)
    gone = weakref.ref(dataset)
    divided.clear()
    del dataset
    gc.collect()
    assert gone() is None


@case
def single_batches():
    x, y = digits(40, "float64", 8)
    sizes = (40, 7, 3, 1)

    def steps(model):
        values = [model.train_on_batch(x[:number], y[:number]) for number in sizes]
        values += [model.test_on_batch(x[:number], y[:number]) for number in sizes]
        weights = np.linspace(0, 1, 40)
        logs = model.train_on_batch(x, y, sample_weight=weights, return_dict=True)
        # Versions of Keras have these in different orders.
        values.append([logs["loss"], logs["accuracy"]])
        values.append(
            model.train_on_batch(x, y, class_weight={number: 0.1 * number for number in range(10)})
        )
        return values, model.get_weights(), [model.predict_on_batch(x[:number]) for number in sizes]

    plain = reference(lambda: steps(perceptron()))
    values, weights, outputs = steps(tnt.Model(perceptron()))
    assert np.allclose(values, plain[0], rtol=0, atol=1e-10), (values, plain[0])
    close(weights, plain[1], 1e-12)
    close(outputs, plain[2], 1e-12, "outputs")
    same_bits(weights)


# ==== What is refused, said and printed ====


@case
def bad_arguments():
    x, y = digits(40, "float64", 8)
    model = tnt.Model(perceptron())
    if SIZE > 1:
        for given in (
            dict(x=batched(40, SIZE - 1)),
            dict(x=x, y=y, batch_size=SIZE - 1),
            dict(x=batched(40, SIZE - 1, drop_remainder=True)),
        ):
            with raises(
                ValueError, "{} samples".format(SIZE - 1), "number of ranks, {}".format(SIZE)
            ):
                model.fit(verbose=0, **given)
    with raises(ValueError, "`y`", "tf.data.Dataset"):
        model.fit(batched(40, 8), y, verbose=0)
    with raises(ValueError, "`batch_size`"):
        model.fit(batched(40, 8), batch_size=8, verbose=0)
    with raises(ValueError, "infinite dataset", "number of steps"):
        model.fit(batched(40, 8).repeat(), verbose=0)
    for empty in (batched(40, 8).take(0), batched(40, 8).filter(lambda *element: False)):
        with raises(ValueError, "empty"):
            model.fit(empty, verbose=0)
        with raises(ValueError, "empty"):
            model.evaluate(empty, verbose=0)
        with raises(ValueError, "empty"):
            model.predict(empty, verbose=0)
    with raises(ValueError, "empty"):
        model.fit(x[:0], y[:0], verbose=0)
    with raises(ValueError, "empty"):
        model.fit(iter([]), verbose=0)
    with raises(ValueError, "same number of samples"):
        model.fit(x, y[:-1], verbose=0)
    with raises(ValueError, "different numbers of samples"):
        model.fit(tf.data.Dataset.from_tensors((x, y[:-1])), verbose=0)
    with raises(ValueError, "validation_split"):
        model.fit(x, y, validation_split=1.5, verbose=0)
    with raises(ValueError, "tnt_micro_batch_size is 0"):
        model.fit(x, y, tnt_micro_batch_size=0, verbose=0)
    with raises(TypeError, "tnt_distribute_dataset"):
        model.fit(x, y, tnt_distribute_dataset="yes", verbose=0)
    fresh = tnt.Model(keras.Sequential([keras.layers.Input((8, 8, 1)), keras.layers.Flatten()]))
    for function in (
        lambda: fresh.fit(x, y),
        lambda: fresh.evaluate(x, y),
        lambda: fresh.train_on_batch(x, y),
    ):
        with raises((ValueError, RuntimeError), "compile"):
            function()


@case
def different_calls_are_refused():
    if SIZE == 1:
        return
    x, y = digits(40, "float64", 8)
    model = tnt.Model(perceptron())
    with raises(ValueError, "ranks 0 and 1", "epochs: 2 and 3"):
        model.fit(x, y, epochs=2 + min(RANK, 1), verbose=0)
    with raises(ValueError, "ranks 0 and 1", "distributed validation: True and False"):
        model.fit(
            x,
            y,
            validation_data=(x, y),
            tnt_distribute_validation_dataset=RANK == 0,
            verbose=0,
        )
    with raises(ValueError, "ranks 0 and {}".format(SIZE - 1), "batch size"):
        model.fit(x, y, batch_size=20 if RANK < SIZE - 1 else 10, verbose=0)
    with raises(ValueError, "ranks 0 and 1", "procedure"):
        model.evaluate(x, y, verbose=0) if RANK == 0 else model.fit(x, y, verbose=0)
    model.fit(x, y, verbose=0)


@case
def different_data_are_found():
    if SIZE == 1:
        return
    model = tnt.Model(perceptron())
    x, y = digits(60, "float64", 8)
    if RANK == SIZE - 1:
        x = x[::-1].copy()
    with raises(errors.DataMismatch, "ranks 0 and {}".format(SIZE - 1), "step 1"):
        model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(20), verbose=0)
    one_seed = (
        tf.data.Dataset.from_tensor_slices(digits(60, "float64", 8))
        .shuffle(60, seed=1 + RANK)
        .batch(20)
    )
    with raises(errors.DataMismatch, "seed"):
        tnt.Model(perceptron()).fit(one_seed, verbose=0)


@case
def batches_are_logged_once():
    with logged() as lines:
        tnt.Model(perceptron()).fit(batched(93, 64), epochs=2, verbose=0)
        tnt.Model(perceptron()).fit(*digits(60, "float64", 8), batch_size=60, epochs=2, verbose=0)
    told = [line for line in lines if "global batch" in line]
    assert told == [
        "INFO: global batch {}; 2 steps per epoch, last batch 29".format(data.describe(64, SIZE)),
        "INFO: global batch {}; 1 steps per epoch, last batch 60".format(data.describe(60, SIZE)),
    ], told


@case
def master_alone_prints():
    x, y = digits(40, "float64", 8)
    model = tnt.Model(perceptron())
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        # Keras 2 keeps the history of evaluate in the model then.
        history = model.fit(x, y, epochs=2, verbose=2, validation_data=(x, y)).history
        model.evaluate(x, y, verbose=1)
        model.predict(x, verbose=1)
    printed = text.getvalue()
    if RANK:
        assert printed == "", printed
        return
    assert (
        "Epoch 2/2" in printed and "val_loss: {:.4f}".format(history["val_loss"][1]) in printed
    ), printed
    assert " loss: {:.4f}".format(history["loss"][1]) in printed, printed


# ==== Planted faults ====


@case
def seed_of_one_rank_makes_no_difference_to_arrays():
    x, y = digits(60, "float64", 8)
    keras.utils.set_random_seed(1)
    model = tnt.Model(perceptron())
    tf.random.set_seed(100 + RANK)
    model.fit(x, y, batch_size=20, epochs=2, verbose=0)
    same_bits(model.get_weights())


if __name__ == "__main__":
    run()
