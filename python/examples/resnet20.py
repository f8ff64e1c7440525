"""ResNet-20 with the layers of the paper on CIFAR-10, here on digits in colour, since nothing is
downloaded.

BatchNormalization takes mean and variance over the global batch (`sync_batch_norm=True`); the
learning rate follows a schedule; the weights are saved by one rank, as a file that plain Keras
loads.

    tarantella -n 2 --no-gpu resnet20.py
"""

import argparse
import os
import tempfile

import tarantella as tnt

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

keras = tf.keras
layers = keras.layers


def pictures(count):
    """Digits of 32 x 32 in random colours."""
    loaded = load_digits()
    grey = (
        loaded.images[:count].astype(np.float32).repeat(4, axis=1).repeat(4, axis=2)[..., None] / 16
    )
    colours = np.random.default_rng(7).uniform(0.3, 1, (count, 1, 1, 3)).astype(np.float32)
    return grey * colours, loaded.target[:count]


def block(x, filters, stride):
    """Two convolutions beside a short cut."""
    shortcut = x
    for number, step in enumerate((stride, 1)):
        x = layers.Conv2D(
            filters, 3, step, padding="same", use_bias=False, kernel_initializer="he_normal"
        )(x)
        x = layers.BatchNormalization()(x)
        if number == 0:
            x = layers.ReLU()(x)
    if stride != 1:
        shortcut = layers.Conv2D(
            filters, 1, stride, use_bias=False, kernel_initializer="he_normal"
        )(shortcut)
        shortcut = layers.BatchNormalization()(shortcut)
    return layers.ReLU()(layers.Add()([x, shortcut]))


def resnet20(classes=10):
    """Three stages of three blocks."""
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(16, 3, padding="same", use_bias=False, kernel_initializer="he_normal")(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    for filters in (16, 32, 64):
        for number in range(3):
            x = block(x, filters, 2 if filters > 16 and number == 0 else 1)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(classes, activation="softmax")(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--quick", action="store_true", help="one epoch of 256 pictures")
    options = parser.parse_args()

    images, labels = pictures(256 if options.quick else 1437)
    data = (
        tf.data.Dataset.from_tensor_slices((images, labels))
        .shuffle(len(images))
        .batch(options.batch_size)
    )
    model = tnt.Model(resnet20(), sync_batch_norm=True)
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 0.05 * 0.5 ** (epoch // 5))
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    history = model.fit(
        data, epochs=1 if options.quick else options.epochs, callbacks=[schedule], verbose=2
    )
    with tempfile.TemporaryDirectory() as directory:
        # Written by the master; each rank has a name of its own, so others find nothing there.
        path = os.path.join(directory, "resnet20.weights.h5")
        model.save_weights(path)
        if tnt.is_master_rank():
            print(
                "loss {:.3f}; {} bytes of weights".format(
                    history.history["loss"][-1], os.path.getsize(path)
                )
            )
            plain = resnet20()
            plain.load_weights(path)
            same = all(
                np.array_equal(a, b) for a, b in zip(plain.get_weights(), model.get_weights())
            )
            if not same:
                raise SystemExit("the file has other weights than the model")


main()
