"""A small Transformer that tells whether a sequence reads the same from both ends, with data
divided by hand.

Each rank makes its own sequences, and `tnt_distribute_dataset=False` feeds them as they are:
gradients are weighted by the samples of each rank. The validation data are the same on all ranks
and divided as usual.

    tarantella -n 2 --no-gpu transformer.py
"""

import argparse

import tarantella as tnt

import numpy as np
import tensorflow as tf

keras = tf.keras
layers = keras.layers
LENGTH, WORDS, WIDTH = 8, 10, 32


def sequences(count, seed):
    """Sequences of which half are palindromes, and which."""
    random = np.random.default_rng(seed)
    data = random.integers(0, WORDS, (count, LENGTH))
    labels = random.integers(0, 2, count)
    mirrored = np.concatenate([data[:, : LENGTH // 2], data[:, : LENGTH // 2][:, ::-1]], axis=1)
    return np.where(labels[:, None] == 1, mirrored, data).astype(np.int32), labels.astype(
        np.float32
    )


class Places(layers.Layer):
    """Adds to each word what tells its place."""

    def build(self, shape):
        self.table = self.add_weight(
            name="table", shape=(shape[-2], shape[-1]), initializer="random_normal"
        )
        self.built = True

    def call(self, x):
        return x + self.table


def transformer():
    """One encoder block."""
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = Places()(layers.Embedding(WORDS, WIDTH)(inputs))
    attended = layers.MultiHeadAttention(4, WIDTH // 4)(x, x)
    x = layers.LayerNormalization()(x + attended)
    forward = layers.Dense(WIDTH)(layers.Dense(2 * WIDTH, activation="relu")(x))
    x = layers.LayerNormalization()(x + forward)
    x = layers.Dense(64, activation="relu")(layers.Flatten()(x))
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="one epoch")
    options = parser.parse_args()

    own = 4096 // tnt.get_size()
    data = tf.data.Dataset.from_tensor_slices(sequences(own, seed=1 + tnt.get_rank()))
    data = data.batch(max(1, 64 // tnt.get_size()), drop_remainder=True)
    test = tf.data.Dataset.from_tensor_slices(sequences(512, seed=0)).batch(128)
    model = tnt.Model(transformer())
    model.compile(
        keras.optimizers.Adam(2e-3),
        "binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC()],
    )
    history = model.fit(
        data,
        validation_data=test,
        epochs=1 if options.quick else options.epochs,
        verbose=2,
        tnt_distribute_dataset=False,
    )
    if tnt.is_master_rank():
        print(
            "accuracy {:.3f} on {} sequences of {} ranks each epoch".format(
                history.history["val_accuracy"][-1], own * tnt.get_size(), tnt.get_size()
            )
        )


main()
