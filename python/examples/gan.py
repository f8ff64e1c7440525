"""A generative adversarial network with a training loop of its own: two models, two optimizers.

Three lines make the loop distributed: `tnt.optimizers.Optimizer` sums gradients over all ranks,
`tnt.data.Dataset` gives each rank its part of a global batch with its weight, and `tnt.broadcast`
has all begin with equal weights.

    tarantella -n 2 --no-gpu gan.py
"""

import argparse

import tarantella as tnt

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

keras = tf.keras
layers = keras.layers
NOISE = 16


def generator():
    """Noise to a picture of 8 x 8."""
    return keras.Sequential(
        [
            keras.Input((NOISE,)),
            layers.Dense(128, activation="relu"),
            layers.Dense(64, activation="sigmoid"),
        ]
    )


def discriminator():
    """How much a picture looks like one of the digits."""
    return keras.Sequential(
        [keras.Input((64,)), layers.Dense(128, activation="relu"), layers.Dense(1)]
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--quick", action="store_true", help="two epochs")
    options = parser.parse_args()

    pictures = (load_digits().data / 16).astype(np.float32)
    data = tnt.data.Dataset(
        tf.data.Dataset.from_tensor_slices(pictures).shuffle(2000).batch(options.batch_size)
    )
    make, judge = generator(), discriminator()
    make_optimizer = tnt.optimizers.Optimizer(keras.optimizers.Adam(2e-4, 0.5))
    judge_optimizer = tnt.optimizers.Optimizer(keras.optimizers.Adam(2e-4, 0.5))
    tnt.broadcast(make.variables + judge.variables)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    noise = tf.random.Generator.from_seed(100 + tnt.get_rank())

    def step(real):
        """One step of both models on this rank's part."""
        with tf.GradientTape() as judge_tape, tf.GradientTape() as make_tape:
            fake = make(noise.normal((tf.shape(real)[0], NOISE)), training=True)
            on_real, on_fake = judge(real, training=True), judge(fake, training=True)
            judge_loss = loss(tf.ones_like(on_real), on_real) + loss(
                tf.zeros_like(on_fake), on_fake
            )
            make_loss = loss(tf.ones_like(on_fake), on_fake)
        for tape, value, model, optimizer in (
            (judge_tape, judge_loss, judge, judge_optimizer),
            (make_tape, make_loss, make, make_optimizer),
        ):
            variables = model.trainable_variables
            optimizer.apply_gradients(list(zip(tape.gradient(value, variables), variables)))
        return judge_loss, make_loss

    for epoch in range(2 if options.quick else options.epochs):
        sums, count = np.zeros(2), 0
        for real, weight in data.weights:
            with tnt.batch_weight(weight):
                sums += weight * np.array([float(value) for value in step(real)])
            count += 1
        losses = tnt.allreduce(sums) / count
        if tnt.is_master_rank():
            print(
                "epoch {}: loss of the judge {:.3f}, of the maker {:.3f}".format(
                    epoch + 1, *losses
                ),
                flush=True,
            )
    weights = np.concatenate([value.ravel() for value in make.get_weights() + judge.get_weights()])
    if not (tnt.allgather(weights) == weights).all():
        raise SystemExit("the ranks have come apart")


main()
