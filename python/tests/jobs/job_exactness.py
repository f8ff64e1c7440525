"""Training in single precision: how far losses are from those of plain Keras, and what is learned.

Training amplifies rounding, so weights are compared in f64 (job_training.py). Here losses are, as
long as that has not made itself felt, and the accuracy on images that were held out.
"""

import os
from typing import Any

from cases import case, close, dataset, digits, keras, np, run, same_bits, tnt, with_weights

# The others are of other writers.
TRAINED = 1437
SIDE = 32
LEAST_ACCURACY = 0.91
FULL = bool(os.environ.get("GASPI_TEST_FULL"))


def lenet5(seed: int) -> Any:
    """LeNet-5 as in python/examples: 1.6 million weights, drawn by NumPy."""
    keras.backend.set_floatx("float32")
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 1)),
            layers.Conv2D(20, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(50, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(500, activation="relu"),
            layers.Dense(10),
        ]
    )
    return with_weights(model, seed)


def trained(
    optimizer: Any, epochs: int, number: int = TRAINED, seed: int = 1, distributed: bool = True
) -> Any:
    """LeNet-5 after some epochs on the first digits; its losses."""
    model = tnt.Model(lenet5(seed)) if distributed else lenet5(seed)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    data = dataset(*digits(number, "float32", SIDE), batch=64)
    return model, model.fit(data, epochs=epochs, verbose=0).history["loss"]


@case
def losses_of_three_epochs() -> None:
    """Plain SGD of rate 0.01: within 2e-4 of plain Keras."""
    _, plain = trained(keras.optimizers.SGD(0.01), 3, distributed=False)
    model, losses = trained(keras.optimizers.SGD(0.01), 3)
    assert len(losses) == 3 and losses[2] < losses[0] < 3.0, losses
    for mine, reference in zip(losses, plain):
        close([mine], [reference], 2e-4, "loss")
    same_bits(model.get_weights())


@case
def weights_of_ten_steps() -> None:
    """Within 5e-5 of plain Keras."""
    models = [
        trained(keras.optimizers.SGD(0.01), 1, 640, distributed=distributed)[0]
        for distributed in (False, True)
    ]
    close(models[1].get_weights(), models[0].get_weights(), 5e-5)


@case
def held_out_digits_are_known() -> None:
    """Adam(1e-3) after 8 epochs, by images that it was not trained on."""
    x, y = (each[TRAINED:] for each in digits(1797, "float32", SIDE))
    assert len(x) == 360, len(x)
    for seed in (1, 2, 3) if FULL else (1,):
        model, _ = trained(keras.optimizers.Adam(1e-3), 8, seed=seed)
        accuracy = model.evaluate(dataset(x, y, batch=60), verbose=0)[1]
        known = np.mean(model.predict(x, verbose=0).argmax(1) == y)
        assert abs(accuracy - known) < 1e-6, (accuracy, known)
        assert accuracy >= LEAST_ACCURACY, (seed, accuracy)


if __name__ == "__main__":
    run()
