"""Trains a small convolutional network on scikit-learn's handwritten digits with JAX and optax.

    python examples/jax_digits.py                            alone
    sumpter run -n 2 -s 1 -- python examples/jax_digits.py   two workers and a summation server

Every run sees the same batches and starts from the same weights. `--digest` prints the sha256 of
the parameters in the end.
"""

import argparse
import hashlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import sumpter.jax as sj

EPOCHS = 6
BATCH = 64  # over all workers
TARGET = 0.97
SEED = 1


def load_split() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images and labels to train on, and every fifth of all held out."""
    digits = load_digits()
    images = digits.images[..., None].astype(np.float32) / 16.0
    held_out = np.arange(len(images)) % 5 == 0
    return images[~held_out], digits.target[~held_out], images[held_out], digits.target[held_out]


def make_params(key: jax.Array) -> dict[str, jax.Array]:
    shapes = {
        "conv1": (3, 3, 1, 32),
        "conv2": (3, 3, 32, 64),
        "dense1": (64 * 4 * 4, 128),
        "dense2": (128, 10),
    }
    params = {}
    for (layer, shape), own in zip(shapes.items(), jax.random.split(key, 4), strict=True):
        params[layer] = jax.nn.initializers.he_normal()(own, shape)
        params[f"{layer}_bias"] = jnp.zeros(shape[-1])
    return params


def predict(params: dict[str, jax.Array], images: jax.Array) -> jax.Array:
    x = images
    for layer in ("conv1", "conv2"):
        x = jax.lax.conv_general_dilated(
            x, params[layer], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + params[f"{layer}_bias"])
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = jax.nn.relu(x.reshape(len(x), -1) @ params["dense1"] + params["dense1_bias"])
    return x @ params["dense2"] + params["dense2_bias"]


def loss_of(params: dict[str, jax.Array], images: jax.Array, labels: jax.Array) -> jax.Array:
    logits = predict(params, images)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits.")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--compression", default="none", help="a codec, such as int8")
    parser.add_argument("--digest", action="store_true", help="print the parameters' sha256")
    options = parser.parse_args()

    sj.init()
    images, labels, test_images, test_labels = load_split()
    steps = len(labels) // BATCH
    params = sj.broadcast_parameters(make_params(jax.random.key(SEED + sj.rank())))
    rates = optax.cosine_decay_schedule(2e-3, options.epochs * steps)
    optimizer = sj.distribute(optax.adam(rates), compression=options.compression)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, images, labels):
        gradients = jax.grad(loss_of)(params, images, labels)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    shuffle = np.random.default_rng(SEED)
    for _ in range(options.epochs):
        order = shuffle.permutation(len(labels))
        for number in range(steps):
            # Each worker takes its share of the batch; the gradients' average over the workers is
            # the gradient of the whole batch.
            own = order[number * BATCH : (number + 1) * BATCH][sj.rank() :: sj.size()]
            params, state = step(params, state, images[own], labels[own])
            sj.record_samples(len(own))

    accuracy = float((predict(params, test_images).argmax(1) == test_labels).mean())
    is_first = sj.rank() == 0
    if options.digest:
        whole = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params))
        print(f"parameters {hashlib.sha256(whole).hexdigest()}", flush=True)
    sj.shutdown()
    if is_first:
        print(f"accuracy on {len(test_labels)} held-out digits: {accuracy:.2%}", flush=True)
    if options.epochs >= EPOCHS and accuracy < TARGET:
        print(f"expected at least {TARGET:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
