"""fit, evaluate and predict with generators and sequences, against plain Keras."""

from cases import KERAS3, case, close, digits, keras, run, same_bits
from job_loops import equals_plain, perceptron, reference, same_history, trained

import numpy as np
import tarantella as tnt
from tarantella import collectives


def batches(number, batch):
    x, y = digits(number, "float64", 8)
    for begin in range(0, number, batch):
        yield x[begin : begin + batch], y[begin : begin + batch]


def endless(number=130):
    while True:
        yield from batches(number, 64)


class Batches(getattr(keras.utils, "PyDataset", keras.utils.Sequence)):
    """Batches of digits; counts the epochs."""

    def __init__(self):
        if KERAS3:
            super().__init__()
        self.data = list(batches(130, 64))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, number):
        return self.data[number]


class Turning(Batches):
    """Begins each epoch with the second batch of the one before."""

    epochs = 0

    def on_epoch_end(self):
        self.epochs += 1
        self.data = self.data[1:] + self.data[:1]


class Noting(Batches):
    """Notes when it is told of epochs."""

    def __init__(self, name, noted):
        super().__init__()
        self.name = name
        self.noted = noted

    def on_epoch_begin(self):
        self.noted.append(self.name + " begins")

    def on_epoch_end(self):
        self.noted.append(self.name + " ends")


def noting(noted, stops=None, stops_behind=None):
    """A callback that notes what it is told. `stops` is the epoch whose end stops the training,
    `stops_behind` a batch of an epoch, as the last rank wishes.
    """
    epochs = []

    def wishes():
        return tnt.get_rank() == tnt.get_size() - 1 or not isinstance(told.model, tnt.Model)

    def end_batch(batch, logs=None):
        noted.append("batch end")
        if stops_behind == (len(epochs) - 1, batch) and wishes():
            told.model.stop_training = True

    def begin_epoch(epoch, logs=None):
        noted.append("epoch begin")
        epochs.append(epoch)

    def note(what):
        return lambda *arguments, **named: noted.append(what)

    def end(epoch, logs=None):
        noted.append("epoch end")
        if epoch == stops:
            told.model.stop_training = True

    told = keras.callbacks.LambdaCallback(
        on_train_begin=note("train begin"),
        on_train_end=note("train end"),
        on_epoch_begin=begin_epoch,
        on_epoch_end=end,
        on_train_batch_begin=note("batch begin"),
        on_train_batch_end=end_batch,
    )
    for what in ("test_begin", "test_end", "predict_begin", "predict_end"):
        setattr(told, "on_" + what, note(what))
    return told


@case
def sequences_are_told_of_epochs_when_plain_keras_tells_them():
    def fits(model):
        noted = []
        for options in (
            dict(),
            dict(validation_data=Noting("validation", noted)),
            dict(validation_data=Noting("validation", noted), validation_steps=1),
            dict(validation_data=Noting("validation", noted), validation_freq=2),
            dict(steps_per_epoch=1),
            dict(stops=1),
            dict(stops_behind=(1, 2)),
            dict(stops_behind=(1, 2), validation_data=Noting("validation", noted)),
        ):
            noted.append(sorted(options))
            told = noting(noted, options.pop("stops", None), options.pop("stops_behind", None))
            data = Noting("data", noted)
            model.fit(data, epochs=3, shuffle=False, verbose=0, callbacks=[told], **options)
        return noted

    def evaluates(model):
        noted = []
        for steps in (None, 1):
            data = Noting("data", noted)
            model.evaluate(data, steps=steps, verbose=0, callbacks=[noting(noted)])
        model.predict(Noting("data", noted), verbose=0, callbacks=[noting(noted)])
        return noted

    for calls in (fits, evaluates):
        plain = reference(lambda calls=calls: calls(perceptron()))
        noted = calls(tnt.Model(perceptron()))
        assert noted == plain, (noted, plain)


@case
def sequences_that_change_between_epochs():
    for validates in (False, True):

        def fit(model, turning, validates=validates):
            validation = Batches() if validates else None
            return trained(model, x=turning, epochs=3, shuffle=False, validation_data=validation)

        plain_weights, plain_history = reference(lambda: fit(perceptron(), Turning()))
        turning = Turning()
        weights, history = fit(tnt.Model(perceptron()), turning)
        close(weights, plain_weights, 1e-12)
        same_history(history, plain_history)
        same_bits(weights)
        # Keras 3 tells of an end before the first epoch, too.
        assert turning.epochs == (4 if KERAS3 else 3)


@case
def generators_and_sequences():
    equals_plain(lambda: dict(x=batches(130, 64)))
    # Plain Keras reads ahead of a validation, so what the next one begins with is left to chance;
    # here it is all the same.
    equals_plain(
        lambda: dict(
            x=endless(),
            steps_per_epoch=3,
            epochs=2,
            validation_data=endless(61),
            validation_steps=3,
        )
    )
    equals_plain(lambda: dict(x=Batches(), epochs=2, shuffle=False, validation_data=Batches()))
    history = tnt.Model(perceptron()).fit(Batches(), epochs=3, verbose=0).history
    assert len({str(each) for each in collectives.allgather_object(history)}) == 1
    model = tnt.Model(perceptron())
    result = reference(lambda: perceptron().evaluate(Batches(), verbose=0))
    assert np.allclose(model.evaluate(Batches(), verbose=0), result, atol=1e-10)
    assert (
        model.predict(batches(130, 64), verbose=0)
        == reference(lambda: perceptron().predict(batches(130, 64), verbose=0))
    ).all()


@case
def first_batch_that_builds_a_model_is_trained():
    def growing(labels=True):
        # The second dimension is free, so no batch of zeros can build the model.
        generator = np.random.default_rng(2)
        for length in (3, 4, 5, 4):
            x = generator.normal(size=(8, length, 2))
            yield (x, x.sum((1, 2))[:, None]) if labels else (x,)

    def built(wrap=lambda model: model):
        keras.backend.set_floatx("float64")
        initializers = [keras.initializers.GlorotUniform(seed=seed) for seed in (1, 2)]
        model = wrap(
            keras.Sequential(
                [
                    keras.layers.Dense(4, "tanh", kernel_initializer=initializers[0]),
                    keras.layers.GlobalAveragePooling1D(),
                    keras.layers.Dense(1, kernel_initializer=initializers[1]),
                ]
            )
        )
        model.compile("sgd", "mse")
        return model

    plain, model = built(), built(tnt.Model)
    plain(next(growing())[0])
    losses = [each.fit(growing(), verbose=0).history["loss"] for each in (plain, model)]
    close(model.get_weights(), plain.get_weights(), 1e-10)
    close(losses[1:], losses[:1], 1e-10)
    assert len(built(tnt.Model).predict(growing(False), verbose=0)) == 32


if __name__ == "__main__":
    run()
