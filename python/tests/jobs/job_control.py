"""The control line, the checks, batch normalisation, and training loops of one's own."""

import logging
from typing import Any, List

import cases
from cases import (
    KERAS3,
    RANK,
    SIZE,
    case,
    close,
    dataset,
    keras,
    np,
    raises,
    same_bits,
    tf,
    tnt,
    with_weights,
)
from tarantella import settings


def small() -> Any:
    """A model of two layers in f64."""
    keras.backend.set_floatx("float64")
    return with_weights(
        keras.Sequential(
            [keras.Input((8,)), keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(1)]
        )
    )


def numbers(number: int = 48, batch: int = 8, seed: int = 3) -> Any:
    """Random inputs and targets."""
    generator = np.random.default_rng(seed)
    return dataset(
        generator.normal(size=(number, 8)), generator.normal(size=(number, 1)), batch=batch
    )


def trained(callbacks: List[Any], epochs: int = 4, data: Any = None, **arguments: Any) -> Any:
    """A model after fit."""
    model = tnt.Model(small())
    model.compile(keras.optimizers.SGD(0.05), "mse", **arguments)
    model.fit(
        data if data is not None else numbers(), epochs=epochs, verbose=0, callbacks=callbacks
    )
    return model


class Count(keras.callbacks.Callback):
    """Counts steps and epochs; stops on one rank, at a step or at the end of an epoch."""

    def __init__(self, stop_at_step: int = -1, stop_at_epoch: int = -1, rank: int = 0) -> None:
        super().__init__()
        self.steps, self.epochs = 0, 0
        self.stop_at_step, self.stop_at_epoch, self.rank = stop_at_step, stop_at_epoch, rank

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A step."""
        self.steps += 1
        if self.steps == self.stop_at_step and RANK == self.rank:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """An epoch."""
        self.epochs += 1
        if self.epochs == self.stop_at_epoch and RANK == self.rank:
            self.model.stop_training = True


@case
def a_wish_to_stop_after_a_step_stops_all() -> None:
    count = Count(stop_at_step=3, rank=SIZE - 1)
    trained([count])
    steps = cases.collectives.allgather_object(count.steps)
    assert len(set(steps)) == 1 and steps[0] == (4 if SIZE > 1 else 3), steps


@case
def a_wish_to_stop_after_an_epoch_stops_all() -> None:
    count = Count(stop_at_epoch=2, rank=SIZE - 1)
    trained([count])
    assert count.steps == 12 and count.epochs == 2, (count.steps, count.epochs)


@case
def fit_goes_on_after_a_stop() -> None:
    count = Count(stop_at_step=2)
    model = trained([count])
    again = Count()
    model.fit(numbers(), epochs=1, verbose=0, callbacks=[again])
    assert again.steps == 6, again.steps


@case
def different_data_are_found() -> None:
    if SIZE > 1:
        raises(
            tnt.DataMismatch,
            "ranks 0 and 1 were fed different batches at step 1",
            lambda: trained([], data=numbers(seed=RANK)),
        )


@case
def different_models_are_found() -> None:
    if SIZE > 1:
        keras.backend.set_floatx("float64")
        model = tnt.Model(keras.Sequential([keras.Input((8,)), keras.layers.Dense(1 + RANK)]))
        model.compile("sgd", "mse")
        raises(tnt.LayoutMismatch, "(8, 1)", lambda: model.fit(numbers(), verbose=0))


@case
def different_learning_rates_are_found() -> None:
    if SIZE > 1:
        model = tnt.Model(small())
        model.compile(keras.optimizers.SGD(0.01 * (1 + RANK)), "mse")
        raises(tnt.LayoutMismatch, "learning rate", lambda: model.fit(numbers(), verbose=0))


@case
def different_optimizers_are_found() -> None:
    if SIZE > 1:
        kinds = [keras.optimizers.SGD, keras.optimizers.RMSprop]
        model = tnt.Model(small())
        model.compile(kinds[RANK == SIZE - 1](0.01), "mse")
        raises(
            tnt.LayoutMismatch,
            "the models of ranks 0 and {} differ: optimizer is SGD, and optimizer is "
            "RMSprop".format(SIZE - 1),
            lambda: model.fit(numbers(), verbose=0),
        )


@case
def different_fusion_thresholds_are_found() -> None:
    if SIZE > 1:
        chosen = settings.get()
        before = chosen.fusion_threshold
        chosen.fusion_threshold = 64.0 if RANK == SIZE - 1 else 32.0
        try:
            raises(
                tnt.LayoutMismatch,
                "ranks 0 and {} have fusion thresholds of 32768 and 65536 bytes".format(SIZE - 1),
                lambda: trained([]),
            )
        finally:
            chosen.fusion_threshold = before
        trained([], epochs=1)


class Drift(keras.callbacks.Callback):
    """Changes a weight on one rank."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """One rank goes its own way."""
        if RANK == SIZE - 1:
            weight = self.model.trainable_weights[0]
            weight.assign(weight + 1.0)


@case
def drift_is_found() -> None:
    if SIZE > 1:
        raises(tnt.DriftError, "drifted apart", lambda: trained([Drift()], epochs=1))


def normalised(fused: bool) -> Any:
    """A model with batch normalisation; with images where Keras 2 has a fused operator for it."""
    layers = keras.layers
    keras.backend.set_floatx("float32" if fused else "float64")
    if fused:
        return with_weights(
            keras.Sequential(
                [
                    keras.Input((4, 4, 2)),
                    layers.Conv2D(3, 3, use_bias=False),
                    layers.BatchNormalization(),
                    layers.Flatten(),
                    layers.Dense(1),
                ]
            )
        )
    return with_weights(
        keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(5, use_bias=False),
                layers.BatchNormalization(),
                layers.Activation("tanh"),
                layers.Dense(4, use_bias=False),
                layers.BatchNormalization(),
                layers.Dense(1),
            ]
        )
    )


@case
def synchronised_batch_norm_equals_one_rank() -> None:
    generator = np.random.default_rng(9)
    for fused, relative in ((False, 1e-10), (True, 5e-5)):
        shape = (4, 4, 2) if fused else (8,)
        dtype = "float32" if fused else "float64"
        x = generator.normal(size=(49,) + shape).astype(dtype)
        y = generator.normal(size=(49, 1)).astype(dtype)
        plain = normalised(fused)
        model = tnt.Model(normalised(fused), sync_batch_norm=True)
        histories = []
        for each in (plain, model):
            each.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
            histories.append(
                each.fit(
                    dataset(x, y, batch=16),
                    epochs=2,
                    verbose=0,
                    validation_data=dataset(x, y, batch=16),
                ).history
            )
        close(model.get_weights(), plain.get_weights(), relative)
        close([histories[1]["val_loss"]], [histories[0]["val_loss"]], relative)
        same_bits(model.get_weights())


@case
def moving_statistics_are_averaged() -> None:
    generator = np.random.default_rng(9)
    x, y = generator.normal(size=(48, 8)), generator.normal(size=(48, 1))
    model = tnt.Model(normalised(False))
    model.compile("sgd", "mse")
    model.fit(dataset(x, y, batch=16), epochs=1, verbose=0)
    same_bits(model.get_weights())


@case
def moving_statistics_are_averaged_behind_batches() -> None:
    generator = np.random.default_rng(9)
    x, y = generator.normal(size=(48, 8)), generator.normal(size=(48, 1))
    for look in (
        lambda model: model.evaluate(x, y, batch_size=16, verbose=0),
        lambda model: model.predict(x, batch_size=16, verbose=0),
        lambda model: model.test_on_batch(x, y),
        lambda model: model.predict_on_batch(x),
    ):
        model = tnt.Model(normalised(False))
        model.compile("sgd", "mse")
        for begin in range(0, 48, 16):
            model.train_on_batch(x[begin : begin + 16], y[begin : begin + 16])
        look(model)
        same_bits(model.get_weights())


@case
def few_samples_are_warned_of_once() -> None:
    if SIZE == 1:
        return
    said: List[str] = []

    class Keep(logging.Handler):
        """Keeps what is logged."""

        def emit(self, record: Any) -> None:
            """A line."""
            said.append(record.getMessage())

    handler = Keep()
    logging.getLogger("TNT_LIB").addHandler(handler)
    try:
        moving_statistics_are_averaged()
        model = tnt.Model(normalised(False))
        model.compile("sgd", "mse")
        x, y = np.ones((8, 8)), np.ones((8, 1))
        model.fit(dataset(x, y, batch=8), epochs=3, verbose=0)
    finally:
        logging.getLogger("TNT_LIB").removeHandler(handler)
    assert len([line for line in said if "BatchNormalization" in line]) == 2, said


@case
def gradients_are_handed_over_in_any_order() -> None:
    from tarantella.keras import optimizers

    reducer = optimizers.Reducer()
    # Each of the large ones fills a bucket.
    shapes = [(9000,), (2, 2), (9000,)]
    variables = [tf.Variable(np.ones(shape)) for shape in shapes]

    @tf.function
    def summed(*gradients: Any) -> Any:
        return reducer.reduce(gradients, variables)

    specs = [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables]
    operations = summed.get_concrete_function(*specs).graph.get_operations()
    starts = [each for each in operations if each.type.endswith("Start")]
    handed_over = [name for each in starts for name in each.get_attr("tensors")]
    assert sorted(handed_over) == list(range(len(variables))), [each.type for each in operations]
    assert len(starts) == 2, handed_over
    for start in starts:
        assert not start.control_inputs, "a gradient is held back until {}".format(
            [each.name for each in start.control_inputs]
        )


def own_loop(distributed: bool) -> Any:
    """A loop without fit, as docs/training.md shows it."""
    model = small()
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    generator = np.random.default_rng(3)
    x, y = generator.normal(size=(50, 8)), generator.normal(size=(50, 1))
    for begin in range(0, 50, 16):
        batch = slice(begin, min(begin + 16, 50))
        own_x, own_y, weight = x[batch], y[batch], 1.0
        if distributed:
            if begin == 0:
                optimizer = tnt.optimizers.Optimizer(optimizer)
            rows = np.array_split(np.arange(len(own_x)), SIZE)[RANK]
            weight = len(rows) / len(own_x)
            own_x, own_y = own_x[rows], own_y[rows]
        with tf.GradientTape() as tape:
            loss = (
                tf.reduce_mean(tf.square(model(own_x, training=True) - own_y))
                if len(own_x)
                else 0.0 * tf.reduce_sum(model(x[:1]))
            )
        gradients = tape.gradient(loss, model.trainable_variables)
        if distributed:
            with tnt.batch_weight(weight):
                optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        else:
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return model


@case
def custom_loop() -> None:
    plain, model = own_loop(False), own_loop(True)
    close(model.get_weights(), plain.get_weights(), 1e-12)
    same_bits(model.get_weights())


@case
def weight_around_a_traced_step() -> None:
    if SIZE == 1:
        return
    model = small()
    variables = model.trainable_variables
    optimizer = keras.optimizers.SGD(1.0)
    optimizer = tnt.optimizers.Optimizer(optimizer)
    if hasattr(optimizer, "build"):
        optimizer.build(variables)

    @tf.function
    def step() -> None:
        optimizer.apply_gradients([(tf.ones_like(each), each) for each in variables])

    def moved() -> float:
        before = model.get_weights()
        step()
        by = [old - new for old, new in zip(before, model.get_weights())]
        close(by, [np.full_like(each, by[0].flat[0]) for each in by], 1e-5)
        return float(by[0].flat[0])

    for weight in (1.0, 0.25):
        with tnt.batch_weight(weight):
            assert np.isclose(moved(), weight * SIZE)
            with tnt.batch_weight(3.0):
                assert np.isclose(moved(), 3.0 * SIZE)
            assert np.isclose(moved(), weight * SIZE)
        # Without it each rank counts 1/p.
        assert np.isclose(moved(), 1.0)


@case
def weight_within_a_traced_step() -> None:
    if SIZE == 1:
        return
    variable = tf.Variable([0.0])
    optimizer = tnt.optimizers.Optimizer(keras.optimizers.SGD(1.0))
    if hasattr(optimizer, "build"):
        optimizer.build([variable])

    @tf.function
    def step(weight: Any) -> None:
        with tnt.batch_weight(weight):
            optimizer.apply_gradients([(tf.ones([1]), variable)])

    for weight in (0.5, 0.25):
        variable.assign([0.0])
        step(tf.constant(weight))
        close([variable.numpy()], [[-weight * SIZE]], 1e-6)


@case
def broadcast_of_variables() -> None:
    model = small()
    expected = model.get_weights()
    model.set_weights([weight + RANK for weight in expected])
    tnt.broadcast(model.weights)
    close(model.get_weights(), expected, 0)


@case
def random_layers_draw_by_rank() -> None:
    keras.backend.set_floatx("float32")
    if not KERAS3 or SIZE == 1:
        return
    model = tnt.Model(keras.Sequential([keras.Input((64,)), keras.layers.Dropout(0.5)]))
    model.compile("sgd", "mse")
    model.evaluate(np.ones((8, 64)), np.ones((8, 64)), verbose=0)
    own = np.asarray(model(np.ones((1, 64)), training=True)).tobytes()
    assert len(set(cases.collectives.allgather_object(own))) == SIZE


if __name__ == "__main__":
    cases.run()
