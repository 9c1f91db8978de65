"""Trains a small convolutional network on scikit-learn's handwritten digits with Keras' fit().

    python examples/keras_digits.py                            alone
    sumpter run -n 2 -s 1 -- python examples/keras_digits.py   two workers and a summation server

Every run sees the same batches and starts from the same weights. Needs TensorFlow and Keras 3.
"""

import sys

import keras
import numpy as np
from sklearn.datasets import load_digits

import sumpter.keras as sk

EPOCHS = 6
BATCH = 64  # over all workers
TARGET = 0.97
SEED = 1


def main() -> int:
    sk.init()
    keras.utils.set_random_seed(SEED)
    digits = load_digits()
    images = digits.images[..., None].astype(np.float32) / 16.0
    held_out = np.arange(len(images)) % 5 == 0
    # Whole batches, of which each worker takes its part.
    rows = (~held_out).nonzero()[0]
    rows = rows[: len(rows) // BATCH * BATCH].reshape(-1, sk.size(), BATCH // sk.size())
    own = rows[:, sk.rank()].ravel()

    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    rates = keras.optimizers.schedules.CosineDecay(2e-3, EPOCHS * len(rows))
    model.compile(
        sk.DistributedOptimizer(keras.optimizers.Adam(rates)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,  # XLA's code cannot call Sumpter
    )
    model.fit(
        images[own],
        digits.target[own],
        BATCH // sk.size(),
        EPOCHS,
        verbose=2 if sk.rank() == 0 else 0,
        callbacks=[
            sk.callbacks.BroadcastGlobalVariablesCallback(0),
            sk.callbacks.MetricAverageCallback(),
        ],
    )
    _, accuracy = model.evaluate(images[held_out], digits.target[held_out], verbose=0)
    if sk.rank() == 0:
        print(f"accuracy on {held_out.sum()} held-out digits: {accuracy:.2%}")
    sk.shutdown()
    return 0 if accuracy >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
