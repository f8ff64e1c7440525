"""Every metric of Keras, by enumeration, equals the serial value in fit, validation and
evaluate.
"""

import inspect

from cases import RANK, SIZE, case, keras, run
from expect import raises

import numpy as np
import tarantella as tnt
import tensorflow as tf
from tarantella import collectives
from tarantella.keras import flavour

BATCH, SAMPLES = 16, 50
# What a class needs beyond its defaults.
ARGUMENTS = {
    "SensitivityAtSpecificity": dict(specificity=0.5),
    "SpecificityAtSensitivity": dict(sensitivity=0.5),
    "PrecisionAtRecall": dict(recall=0.5),
    "RecallAtPrecision": dict(precision=0.5),
    "IoU": dict(num_classes=2, target_class_ids=[0, 1]),
    "BinaryIoU": dict(target_class_ids=[0, 1], threshold=0.5),
    "MeanIoU": dict(num_classes=2),
    "OneHotIoU": dict(num_classes=3, target_class_ids=[0, 2]),
    "OneHotMeanIoU": dict(num_classes=3),
    "TopKCategoricalAccuracy": dict(k=2),
    "SparseTopKCategoricalAccuracy": dict(k=2),
    "MeanRelativeError": dict(normalizer=[1.5, 2.5, 3.5]),
}
SPARSE = ("SparseCategoricalAccuracy", "SparseCategoricalCrossentropy")
# TensorFlow has the operator of these, or Keras 2 the constants, in single precision only.
SINGLE = (
    "TopKCategoricalAccuracy",
    "SparseTopKCategoricalAccuracy",
    "FBetaScore",
    "F1Score",
    "R2Score",
)
BINARY = (
    "BinaryIoU",
    "BinaryAccuracy",
    "BinaryCrossentropy",
    "AUC",
    "Precision",
    "Recall",
    "TruePositives",
    "TrueNegatives",
    "FalsePositives",
    "FalseNegatives",
    "SensitivityAtSpecificity",
    "SpecificityAtSensitivity",
    "PrecisionAtRecall",
    "RecallAtPrecision",
    "Hinge",
    "SquaredHinge",
    "IoU",
    "MeanIoU",
)
# What plain Keras of a version cannot train with: R2Score resets a count of integers to 0.0.
REFUSED = {"2.13": ("R2Score",)}
# Not made to be given to compile: a base class, and those that take values instead of targets and
# outputs.
NOT_FOR_COMPILE = ("Metric", "Mean", "Sum", "MeanTensor", "MeanMetricWrapper")


def classes():
    """All metric classes of this Keras that plain Keras can train with."""
    found = {}
    version = flavour(keras.Sequential()).__version__
    refused = REFUSED.get(".".join(version.split(".")[:2]), ())
    for name, kind in sorted(vars(keras.metrics).items()):
        if (
            inspect.isclass(kind)
            and issubclass(kind, keras.metrics.Metric)
            and name not in NOT_FOR_COMPILE
            and name not in refused
        ):
            found.setdefault(kind, name)
    return [(name, kind) for kind, name in found.items()]


def made(name, kind):
    return kind(name=name, **ARGUMENTS.get(name, {}))


def set_precision(form):
    """Of what is made from now on: metrics, and layers, whose policy Keras 3 keeps within a
    case.
    """
    dtype = "float32" if form.endswith("single") else "float64"
    keras.backend.set_floatx(dtype)
    if hasattr(keras, "config"):
        keras.config.set_dtype_policy(dtype)


def model_for(form, made_metrics):
    """A model whose output suits the metrics, with weights from NumPy."""
    set_precision(form)
    units = 1 if form == "binary" else 3
    model = keras.Sequential(
        [
            keras.layers.Input((4,)),
            keras.layers.Dense(
                units, activation="sigmoid" if form == "binary" else "softmax", name="out"
            ),
        ],
        name="model",
    )
    drawn = np.random.default_rng(5)
    model.set_weights([drawn.normal(0, 1, weight.shape) for weight in model.get_weights()])
    model.compile(
        keras.optimizers.SGD(0.01),
        "sparse_categorical_crossentropy" if form.startswith("sparse") else "mse",
        metrics=made_metrics,
    )
    return model


def data_for(form):
    drawn = np.random.default_rng(6)
    x = drawn.normal(0, 1, (SAMPLES, 4))
    if form == "binary":
        y = (drawn.random((SAMPLES, 1)) > 0.6).astype("float64")
    elif form.startswith("sparse"):
        y = drawn.integers(0, 3, (SAMPLES, 1)).astype("float64")
    else:
        y = np.eye(3)[drawn.integers(0, 3, SAMPLES)]
    return x, y, drawn.random(SAMPLES)


def values(model, form):
    """Logs of fit with validation, and of evaluate, of one model."""
    x, y, weights = data_for(form)
    history = model.fit(
        x, y, batch_size=BATCH, shuffle=False, verbose=0, validation_data=(x[:33], y[:33])
    ).history
    result = model.evaluate(
        x, y, batch_size=BATCH, verbose=0, return_dict=True, sample_weight=weights
    )
    return {name: np.asarray(value[0]) for name, value in history.items()}, {
        name: np.asarray(value) for name, value in result.items()
    }


def form_of(name):
    """The kind of data that a metric is for."""
    if name in SINGLE:
        return "sparse single" if name.startswith("Sparse") else "one hot single"
    return "binary" if name in BINARY else "sparse" if name in SPARSE else "one hot"


def usable(kind, name, form):
    """Whether plain Keras takes a metric with such data."""
    try:
        _, y, _ = data_for(form)
        made(name, kind).update_state(
            y[:2], y[:2, :1] if form == "binary" else np.full((2, 3), 1 / 3, "float32")
        )
        return True
    except Exception:
        return False


@case
def every_metric_equals_serial():
    known = classes()
    assert len(known) > 35, "only {} classes were found".format(len(known))
    tried = []
    for form in ("binary", "sparse", "one hot", "sparse single", "one hot single"):
        # Metrics take the precision when they are made, on all ranks alike.
        set_precision(form)
        names = [(name, kind) for name, kind in known if form_of(name) == form]
        fit = collectives.broadcast_object(
            [name for name, kind in names if usable(kind, name, form)] if RANK == 0 else None
        )
        names = [(name, kind) for name, kind in names if name in fit]
        tried += fit
        plain = collectives.broadcast_object(
            values(model_for(form, [made(name, kind) for name, kind in names]), form)
            if RANK == 0
            else None
        )
        mine = values(tnt.Model(model_for(form, [made(name, kind) for name, kind in names])), form)
        for own, wanted in zip(mine, plain):
            assert sorted(own) == sorted(wanted)
            for name, value in wanted.items():
                assert np.allclose(own[name], value, rtol=0, atol=1e-6, equal_nan=True), (
                    form,
                    name,
                    own[name],
                    value,
                )
    left_out = sorted({name for name, _ in known} - set(tried))
    assert not left_out, "plain Keras refused {}; give it what it needs in ARGUMENTS".format(
        left_out
    )


class Largest(keras.metrics.Metric):
    """The largest output: its state is no sum."""

    def __init__(self, name="largest", **kwargs):
        super().__init__(name=name, **kwargs)
        self.most = self.add_weight(name="most", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.most.assign(
            tf.maximum(
                tf.convert_to_tensor(self.most), tf.cast(tf.reduce_max(y_pred), self.most.dtype)
            )
        )

    def result(self):
        return self.most

    def reset_state(self):
        self.most.assign(0.0)


@case
def registered_states_are_combined_as_told():
    x, y, _ = data_for("one hot")
    plain = model_for("one hot", []).predict(x, verbose=0).max()
    for kind, wanted in (("max", plain), ("sum", None)):
        tnt.metrics.register(Largest, {"most": kind})
        model = tnt.Model(model_for("one hot", [Largest()]))
        found = model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)["largest"]
        if wanted is not None:
            assert np.isclose(found, wanted), (found, wanted)
        else:
            assert SIZE == 1 or found > plain
    tnt.metrics.register(Largest, {"most": "max"})
    with raises(ValueError, "median", "mean"):
        tnt.metrics.register(Largest, {"most": "median"})
    with raises(TypeError, "class"):
        tnt.metrics.register(Largest(), {"most": "max"})


@case
def states_stay_those_of_the_rank():
    """The global values are set only while they are computed: a second reduction gives the same."""
    from tarantella.keras import metrics

    x, y, _ = data_for("one hot")
    model = tnt.Model(model_for("one hot", ["mae"]))
    result = model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
    again = metrics.global_results(model)
    assert np.isclose(again["mae"], result["mae"], atol=1e-12) and np.isclose(
        again["loss"], result["loss"], atol=1e-12
    )
    counts = [
        float(np.asarray(variable))
        for variable, _ in metrics.states(model)
        if "count" in variable.name
    ]
    assert counts and (SIZE == 1 or all(count < SAMPLES for count in counts)), counts


@case
def values_of_a_custom_train_step_are_averaged():
    class Own(keras.Sequential):
        def train_step(self, data):
            super().train_step(data)
            return {"loss_of_mine": tf.constant(float(RANK + 1), tf.float64)}

    keras.backend.set_floatx("float64")
    model = Own([keras.layers.Input((4,)), keras.layers.Dense(3, name="out")], name="model")
    model.compile("sgd", "mse")
    x, y, _ = data_for("one hot")
    history = tnt.Model(model).fit(x, y, batch_size=BATCH, verbose=0).history
    assert np.isclose(history["loss_of_mine"][0], np.mean(np.arange(SIZE) + 1)), history


if __name__ == "__main__":
    run()
