"""Training on all ranks against plain Keras in the same process: in f64 equal up to rounding."""

from typing import Any, Callable, List

import cases
from cases import (
    KERAS3,
    SIZE,
    case,
    close,
    dataset,
    digits,
    keras,
    lenet,
    np,
    raises,
    same_bits,
    tf,
    tnt,
    with_weights,
)
from tarantella.keras import direct


def against_plain(
    build: Callable[[], Any],
    optimizer: Callable[[], Any],
    data: Callable[[], Any],
    epochs: int = 2,
    loss: Any = None,
    relative: float = 1e-12,
    compile_args: Any = None,
    fit_args: Any = None,
    dtype: str = "float64",
) -> Any:
    """Trains the same model plainly and on all ranks; weights and reported losses have to agree."""
    keras.backend.set_floatx(dtype)
    results = []
    for distributed in (False, True):
        tf.random.set_seed(1)
        model = build()
        if distributed:
            model = tnt.Model(model)
        model.compile(
            optimizer=optimizer(),
            loss=loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            **(compile_args or {}),
        )
        history = model.fit(data(), epochs=epochs, verbose=0, **(fit_args or {}))
        results.append((model, history.history))
    (plain, plain_history), (model, history) = results
    same_bits(model.get_weights())
    close(model.get_weights(), plain.get_weights(), relative)
    for name in plain_history:
        close([history[name]], [plain_history[name]], max(1e-10, relative), name)
    return model


def _digits(batch: int, number: int = 400) -> Callable[[], Any]:
    return lambda: dataset(*digits(number), batch=batch)


def perceptron(regularizer: Any = None, dtype: str = "float64") -> Any:
    """A small model for what does not depend on the model."""
    layers = keras.layers
    return with_weights(
        keras.Sequential(
            [
                keras.Input((8,)),
                layers.Dense(6, activation="tanh", kernel_regularizer=regularizer),
                layers.Dense(3),
            ]
        )
    )


def numbers(
    number: int = 50, batch: int = 16, weights: bool = False, outputs: int = 3, seed: int = 3
) -> Callable[[], Any]:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(number, 8))
    y = generator.normal(size=(number, outputs))
    arrays = (x, y) + ((generator.uniform(0.2, 2.0, number),) if weights else ())
    return lambda: dataset(*arrays, batch=batch)


def sgd() -> Any:
    return keras.optimizers.SGD(0.05, momentum=0.9)


# ==== LeNet-5 on digits ====


@case
def sgd_with_momentum() -> None:
    against_plain(lenet, sgd, _digits(64), epochs=3)


@case
def adam() -> None:
    against_plain(lenet, lambda: keras.optimizers.Adam(1e-3), _digits(100))


@case
def last_batch_of_one_sample() -> None:
    against_plain(lenet, sgd, _digits(64, 193))


# ==== Every optimizer ====


def _every_optimizer() -> List[Any]:
    modules = [keras.optimizers]
    if not KERAS3:
        modules += [
            getattr(keras.optimizers, name)
            for name in ("legacy", "experimental")
            if hasattr(keras.optimizers, name)
        ]
    found = []
    for module in modules:
        for name in dir(module):
            kind = getattr(module, name)
            if isinstance(kind, type) and name not in (
                "Optimizer",
                "LossScaleOptimizer",
                "MultiOptimizer",
                "OptimizerMap",
            ):
                if kind not in found and hasattr(kind, "get_config"):
                    found.append(kind)
    return found


@case
def every_optimizer() -> None:
    kinds = _every_optimizer()
    names = {kind.__name__ for kind in kinds}
    assert {
        "SGD",
        "Adam",
        "Ftrl",
        "RMSprop",
        "Adagrad",
        "Adadelta",
        "Adamax",
        "Nadam",
    } <= names, names
    for kind in kinds:
        try:
            # Ratios of two small numbers amplify rounding: 1e-9 instead of 1e-12.
            against_plain(
                perceptron,
                lambda: kind(learning_rate=0.01),
                numbers(),
                epochs=1,
                loss="mse",
                relative=1e-9,
                compile_args={"run_eagerly": True},
            )
        except AssertionError as error:
            raise AssertionError(
                "{}.{}: {}".format(kind.__module__, kind.__name__, error)
            ) from error


class OwnOptimizer(keras.optimizers.SGD):
    """An optimizer of the user's own."""


@case
def own_optimizer() -> None:
    against_plain(perceptron, lambda: OwnOptimizer(0.1), numbers(), loss="mse")


@case
def optimizer_by_name() -> None:
    momentum = {"learning_rate": 0.05, "momentum": 0.9}
    # Keras 2 takes no dict.
    dicts = [{"class_name": "SGD", "config": momentum}] if KERAS3 else []
    for chosen in ["adam", "RMSprop"] + dicts:
        against_plain(perceptron, lambda chosen=chosen: chosen, numbers(), loss="mse")


@case
def clipping() -> None:
    for limits in ({"clipnorm": 0.1}, {"clipvalue": 0.02}, {"global_clipnorm": 0.1}):
        against_plain(
            perceptron, lambda: keras.optimizers.SGD(0.1, **limits), numbers(), loss="mse"
        )


@case
def schedule() -> None:
    rate = keras.optimizers.schedules.ExponentialDecay
    against_plain(
        perceptron, lambda: keras.optimizers.SGD(rate(0.1, 3, 0.5)), numbers(), loss="mse"
    )


@case
def accumulation() -> None:
    if KERAS3:
        against_plain(
            perceptron,
            lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
            numbers(),
            loss="mse",
            relative=1e-9,
        )


# ==== Losses, weights, outputs ====


@case
def regularisation() -> None:
    against_plain(lambda: perceptron(keras.regularizers.L2(0.1)), sgd, numbers(), loss="mse")


@case
def sample_weights() -> None:
    against_plain(
        perceptron,
        sgd,
        numbers(weights=True),
        loss="mse",
        compile_args={"weighted_metrics": ["mae"]},
    )


@case
def class_weights() -> None:
    against_plain(
        lenet,
        sgd,
        _digits(64, 200),
        fit_args={"class_weight": {digit: 0.5 + digit / 4 for digit in range(10)}},
    )


@case
def loss_sum() -> None:
    keras.backend.set_floatx("float64")
    loss = keras.losses.MeanSquaredError(reduction="sum")
    against_plain(
        lambda: perceptron(keras.regularizers.L2(0.1)),
        lambda: keras.optimizers.SGD(0.002),
        numbers(weights=True),
        loss=loss,
        compile_args={"weighted_metrics": ["mae"]},
    )


@case
def loss_mean_with_sample_weight() -> None:
    if KERAS3:
        keras.backend.set_floatx("float64")
        loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
        against_plain(perceptron, sgd, numbers(weights=True), loss=loss)


def _two_outputs() -> Any:
    x = keras.Input((8,), name="x")
    hidden = keras.layers.Dense(6, activation="tanh")(x)
    first = keras.layers.Dense(2, name="first")(hidden)
    second = keras.layers.Dense(1, name="second")(hidden)
    return with_weights(keras.Model(x, [first, second]))


@case
def two_outputs() -> None:
    keras.backend.set_floatx("float64")
    generator = np.random.default_rng(5)
    x, first, second = (generator.normal(size=(50, width)) for width in (8, 2, 1))
    weights = generator.uniform(0.2, 2.0, 50)

    def data() -> Any:
        return tf.data.Dataset.from_tensor_slices(
            (x, (first, second), (weights, weights[::-1]))
        ).batch(16)

    losses = ["mse", keras.losses.MeanAbsoluteError(reduction="sum")]
    against_plain(
        _two_outputs,
        lambda: keras.optimizers.SGD(0.01),
        data,
        loss=losses,
        compile_args={"loss_weights": [0.7, 0.3]},
    )


def _masked() -> Any:
    layers = keras.layers
    return with_weights(
        keras.Sequential(
            [
                keras.Input((7,), dtype="int32"),
                layers.Embedding(20, 4, mask_zero=True),
                layers.SimpleRNN(5, return_sequences=True),
                layers.Dense(1),
            ]
        )
    )


@case
def masks() -> None:
    generator = np.random.default_rng(7)
    words = generator.integers(1, 20, (50, 7))
    for row, length in enumerate(generator.integers(1, 8, 50)):
        words[row, length:] = 0
    targets = generator.normal(size=(50, 7, 1))
    against_plain(
        _masked,
        lambda: keras.optimizers.SGD(0.1),
        lambda: dataset(words.astype("int32"), targets, batch=16),
        loss="mse",
    )


# ==== Kinds of models, ways to run ====


class Subclassed(keras.Model):
    """A model that has weights only once it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.first = keras.layers.Dense(
            6, activation="tanh", kernel_initializer=keras.initializers.GlorotUniform(seed=1)
        )
        self.second = keras.layers.Dense(
            3, kernel_initializer=keras.initializers.GlorotUniform(seed=2)
        )

    def call(self, inputs: Any) -> Any:
        """The forward pass."""
        return self.second(self.first(inputs))


class OwnStep(Subclassed):
    """A model with a step of its own."""

    def train_step(self, data: Any) -> Any:
        """Keras' step, written out."""
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.square(self(x, training=True) - tf.cast(y, keras.backend.floatx()))
            )
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"mse": loss}


@case
def subclassed_and_unbuilt() -> None:
    against_plain(Subclassed, sgd, numbers(), loss="mse")


@case
def own_train_step() -> None:
    keras.backend.set_floatx("float64")
    trained = []
    for wrap in (lambda model: model, tnt.Model):
        model = wrap(OwnStep())
        model.compile(optimizer=sgd())
        model.fit(numbers()(), verbose=0)
        trained.append(model.get_weights())
    close(trained[1], trained[0], 1e-12)


@case
def unbuilt_sequential() -> None:
    def build() -> Any:
        initializer = keras.initializers.GlorotUniform
        return keras.Sequential(
            [
                keras.layers.Dense(6, "tanh", kernel_initializer=initializer(seed=1)),
                keras.layers.Dense(3, kernel_initializer=initializer(seed=2)),
            ]
        )

    against_plain(build, sgd, numbers(), loss="mse")


@case
def several_models() -> None:
    keras.backend.set_floatx("float64")
    x, y = np.ones((8, 8)), np.ones((8, 3))
    trained = []
    for wrap in (lambda model: model, tnt.Model):
        models = [wrap(perceptron()), wrap(perceptron())]
        for rate, model in enumerate(models):
            model.compile(keras.optimizers.SGD(0.1 * (rate + 1)), "mse")
        for _ in range(3):
            for model in models:
                model.train_on_batch(x, y)
        trained.append(models[0].get_weights() + models[1].get_weights())
    close(trained[1], trained[0], 1e-12)


@case
def steps_per_execution() -> None:
    against_plain(perceptron, sgd, numbers(), loss="mse", compile_args={"steps_per_execution": 3})


@case
def run_eagerly() -> None:
    against_plain(perceptron, sgd, numbers(), loss="mse", compile_args={"run_eagerly": True})


class _Counted:
    """A function that counts its calls."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls = function, 0
        self.get_concrete_function = function.get_concrete_function

    def __call__(self, iterator: Any) -> Any:
        self.calls += 1
        return self.function(iterator)


@case
def steps_of_an_epoch_look_for_their_trace_at_first_only() -> None:
    made: List[_Counted] = []
    former = direct.Direct.__init__

    def counting(self: Any, function: Any) -> None:
        made.append(_Counted(function))
        former(self, made[-1])

    direct.Direct.__init__ = counting  # type: ignore[method-assign]
    try:
        against_plain(perceptron, sgd, numbers(batch=4), loss="mse", epochs=3)
    finally:
        direct.Direct.__init__ = former  # type: ignore[method-assign]
    assert [each.calls for each in made] == [3 * direct.CALLS_BEFORE], "steps take the long way"


@case
def functions_run_eagerly_from_a_step_on() -> None:
    class Eager(keras.callbacks.Callback):
        """For some steps in the middle of an epoch."""

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            tf.config.run_functions_eagerly(batch in (4, 5))

    try:
        against_plain(
            perceptron, sgd, numbers(batch=4), loss="mse", fit_args={"callbacks": [Eager()]}
        )
    finally:
        tf.config.run_functions_eagerly(False)


@case
def compiled_before() -> None:
    keras.backend.set_floatx("float64")
    plain = perceptron()
    plain.compile(sgd(), "mse")
    plain.fit(numbers()(), epochs=2, verbose=0)
    model = perceptron()
    model.compile(sgd(), "mse")
    model.fit(numbers()(), verbose=0)
    model = tnt.Model(model)
    model.fit(numbers()(), verbose=0)
    close(model.get_weights(), plain.get_weights(), 1e-12)


@case
def twice_is_once() -> None:
    model = perceptron()
    assert tnt.Model(tnt.Model(model)) is model
    assert isinstance(model, tnt.Model) and isinstance(model, keras.Sequential)
    assert type(model).__name__ == "Sequential"
    raises(TypeError, "Dense", lambda: tnt.Model(keras.layers.Dense(3)))
    raises(
        NotImplementedError,
        "PIPELINING",
        lambda: tnt.Model(perceptron(), tnt.ParallelStrategy.PIPELINING),
    )


# ==== Each rank feeds its own data ====


@case
def own_data_of_each_rank() -> None:
    sizes = [12 + 4 * rank for rank in range(SIZE)]
    generator = np.random.default_rng(2)
    x, y = generator.normal(size=(sum(sizes), 8)), generator.normal(size=(sum(sizes), 3))
    begin = sum(sizes[: cases.RANK])
    own = slice(begin, begin + sizes[cases.RANK])
    keras.backend.set_floatx("float64")
    plain, model = perceptron(), tnt.Model(perceptron())
    for each in (plain, model):
        each.compile(sgd(), keras.losses.MeanSquaredError(reduction="sum"))
    reference = plain.fit(dataset(x, y, batch=sum(sizes)), epochs=3, verbose=0)
    history = model.fit(
        dataset(x[own], y[own], batch=sizes[cases.RANK]),
        epochs=3,
        verbose=0,
        tnt_distribute_dataset=False,
    )
    close(model.get_weights(), plain.get_weights(), 1e-12)
    close([history.history["loss"]], [reference.history["loss"]], 1e-10)
    # What the fit was told is not said of later calls.
    data = dataset(x, y, batch=sum(sizes))
    close([model.evaluate(data, verbose=0)], [plain.evaluate(data, verbose=0)], 1e-10)


@case
def validation_by_own_data() -> None:
    keras.backend.set_floatx("float64")
    generator = np.random.default_rng(6)
    counts = [5 + 3 * rank for rank in range(SIZE)]
    x, y = generator.normal(size=(sum(counts), 8)), generator.normal(size=(sum(counts), 3))
    begin = sum(counts[: cases.RANK])
    own = slice(begin, begin + counts[cases.RANK])
    plain, model = perceptron(), tnt.Model(perceptron())
    for each in (plain, model):
        each.compile(sgd(), "mse", metrics=["mae"])
    reference = plain.fit(
        numbers()(), epochs=2, verbose=0, validation_data=dataset(x, y, batch=4)
    ).history
    for data in (dataset(x[own], y[own], batch=4), (x[own], y[own])):
        model.set_weights(perceptron().get_weights())
        model.compile(sgd(), "mse", metrics=["mae"])
        history = model.fit(
            numbers()(),
            epochs=2,
            verbose=0,
            validation_data=data,
            tnt_distribute_validation_dataset=False,
        ).history
        for name in ("loss", "val_loss", "val_mae"):
            close([history[name]], [reference[name]], 1e-10, name)


@case
def evaluation_of_own_data() -> None:
    keras.backend.set_floatx("float64")
    generator = np.random.default_rng(8)
    counts = [2 + rank for rank in range(SIZE)]
    words = generator.integers(1, 20, (4 * sum(counts), 7))
    for row, length in enumerate(generator.integers(1, 8, len(words))):
        words[row, length:] = 0
    targets = generator.normal(size=(len(words), 7, 1))
    data = dataset(words.astype("int32"), targets, batch=4)
    own = data.skip(sum(counts[: cases.RANK])).take(counts[cases.RANK])
    for loss in ("mse", keras.losses.MeanSquaredError(reduction="sum")):
        plain, model = _masked(), tnt.Model(_masked())
        for each in (plain, model):
            each.compile(sgd(), loss)
        expected = plain.evaluate(data, verbose=0)
        found = model.evaluate(own, verbose=0, tnt_distribute_dataset=False)
        close([found], [expected], 1e-10)
        close([model.evaluate(data, verbose=0)], [expected], 1e-10)


# ==== Starting points ====


@case
def weights_of_rank_0_count() -> None:
    keras.backend.set_floatx("float64")
    model = perceptron()
    expected = model.get_weights()
    model.set_weights([weight + cases.RANK for weight in expected])
    model = tnt.Model(model)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(numbers()(), verbose=0)
    close(model.get_weights(), expected, 0)
    model.set_weights([weight + cases.RANK for weight in expected])
    model.fit(numbers()(), verbose=0)
    close(model.get_weights(), expected, 0)


if __name__ == "__main__":
    cases.run()
