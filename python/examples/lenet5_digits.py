"""LeNet-5 on the handwritten digits of scikit-learn: the quick start.

tarantella -n 2 --no-gpu lenet5_digits.py
"""

import argparse

import tarantella as tnt  # first: it sets the seed before datasets are made

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

keras = tf.keras
layers = keras.layers


def digits():
    """Images of 32 x 32 and their labels: 1437 to train with, and 360 of other writers."""
    loaded = load_digits()
    images = loaded.images.astype(np.float32).repeat(4, axis=1).repeat(4, axis=2)[..., None] / 16
    return (images[:1437], loaded.target[:1437]), (images[1437:], loaded.target[1437:])


def lenet5():
    """LeNet-5 as Keras has it."""
    return keras.Sequential(
        [
            keras.Input((32, 32, 1)),
            layers.Conv2D(20, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(50, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(500, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--quick", action="store_true", help="three epochs")
    options = parser.parse_args()

    train, held_out = digits()
    data = tf.data.Dataset.from_tensor_slices(train).shuffle(1437).batch(options.batch_size)
    test = tf.data.Dataset.from_tensor_slices(held_out).batch(options.batch_size)

    model = tnt.Model(lenet5())
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    model.fit(data, epochs=3 if options.quick else options.epochs, validation_data=test, verbose=2)
    loss, accuracy = model.evaluate(test, verbose=0)
    if tnt.is_master_rank():
        print(
            "{} ranks: loss {:.3f}, accuracy {:.3f} on digits that were held out".format(
                tnt.get_size(), loss, accuracy
            )
        )
    if accuracy < 0.8:
        raise SystemExit("the model has not learned")


main()
