"""Trains a small GPT, written with Flax NNX, on the source of Python's own standard library.

    python examples/jax_lm.py
    sumpter run -n 2 -s 1 -- python examples/jax_lm.py

It reads and writes characters. `--linen` takes a model of Flax Linen.
"""

import argparse
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx

import sumpter.jax as sj

STEPS = 120
BATCH = 32  # over all workers
CONTEXT = 32
WIDTH = 64
HEADS = 4
LAYERS = 2
CHARACTERS = 128  # ASCII
SEED = 1

Predict = Callable[[Any, jax.Array], jax.Array]


class Block(nnx.Module):
    """One transformer layer: attention to what came before, then a small network."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.before_attention = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.before_network = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.widen = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.narrow = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        x = x + self.attention(self.before_attention(x), mask=mask)
        return x + self.narrow(nnx.gelu(self.widen(self.before_network(x))))


class TinyGPT(nnx.Module):
    """Predicts each next character of a text."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.characters = nnx.Embed(CHARACTERS, WIDTH, rngs=rngs)
        self.positions = nnx.Embed(CONTEXT, WIDTH, rngs=rngs)
        for number in range(LAYERS):
            setattr(self, f"block{number}", Block(rngs))
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.predict = nnx.Linear(WIDTH, CHARACTERS, rngs=rngs)

    def __call__(self, text: jax.Array) -> jax.Array:
        x = self.characters(text) + self.positions(jnp.arange(text.shape[1]))
        mask = nnx.make_causal_mask(text)
        for number in range(LAYERS):
            x = getattr(self, f"block{number}")(x, mask)
        return self.predict(self.norm(x))


class LinenGPT(linen.Module):  # the same in Flax Linen
    @linen.compact
    def __call__(self, text: jax.Array) -> jax.Array:
        x = linen.Embed(CHARACTERS, WIDTH)(text)
        x = x + linen.Embed(CONTEXT, WIDTH)(jnp.arange(text.shape[1]))
        for _ in range(LAYERS):
            normal = linen.LayerNorm()(x)
            x = x + linen.SelfAttention(HEADS)(normal, linen.make_causal_mask(text))
            wide = linen.Dense(4 * WIDTH)(linen.LayerNorm()(x))
            x = x + linen.Dense(WIDTH)(linen.gelu(wide))
        return linen.Dense(CHARACTERS)(linen.LayerNorm()(x))


def nnx_model(seed: int) -> tuple[Predict, Any]:
    """Parameters are the variables of a module, which is split off from what has none."""
    definition, params = nnx.split(nnx.jit(TinyGPT)(nnx.Rngs(seed)), nnx.Param)
    return lambda params, text: nnx.merge(definition, params)(text), params


def linen_model(seed: int) -> tuple[Predict, Any]:
    text = jnp.zeros((1, CONTEXT), jnp.int32)
    return LinenGPT().apply, jax.jit(LinenGPT().init)(jax.random.key(seed), text)


def load_text() -> np.ndarray:
    """The standard library's modules as one long row of characters."""
    sources = sorted(pathlib.Path(os.__file__).parent.glob("*.py"))
    text = "\n".join(path.read_text(encoding="utf-8", errors="ignore") for path in sources)
    return np.frombuffer(text.encode("ascii", "ignore"), np.uint8).astype(np.int32)


def write(predict: Predict, params: Any, prompt: str, length: int) -> str:
    """Continues `prompt` character by character."""
    text, compiled, chooser = list(prompt.encode()), jax.jit(predict), np.random.default_rng(SEED)
    for _ in range(length):
        seen = text[-CONTEXT:]
        padded = np.array([seen + [0] * (CONTEXT - len(seen))], np.int32)
        logits = np.asarray(compiled(params, padded), np.float64)[0, len(seen) - 1] / 0.7
        text.append(int((logits + chooser.gumbel(size=CHARACTERS)).argmax()))
    return bytes(text).decode("ascii")


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a small language model with JAX.")
    parser.add_argument("--linen", action="store_true", help="a model of Flax Linen, not NNX")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()

    sj.init()
    predict, params = (linen_model if options.linen else nnx_model)(SEED + sj.rank())
    params = sj.broadcast_parameters(params)  # rank 0's
    optimizer = sj.distribute(optax.adamw(optax.cosine_onecycle_schedule(options.steps, 1e-2)))
    state = sj.broadcast_parameters(optimizer.init(params), name="state")

    def loss_of(params: Any, sample: jax.Array) -> jax.Array:
        logits = predict(params, sample[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, sample[:, 1:]).mean()

    @jax.jit
    def step(params: Any, state: Any, sample: jax.Array) -> tuple[Any, Any, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(params, sample)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, sj.all_reduce(loss, name="loss")

    text, chooser, losses = load_text(), np.random.default_rng(SEED), []
    for _ in range(options.steps):
        starts = chooser.integers(len(text) - CONTEXT, size=(BATCH, 1))
        sample = text[starts[sj.rank() :: sj.size()] + np.arange(CONTEXT + 1)]
        params, state, loss = step(params, state, sample)
        losses.append(float(loss))
        sj.record_samples(len(sample))
    first, last = np.mean(losses[:10]), np.mean(losses[-10:])
    if sj.rank() == 0:
        print(f"loss per character: {first:.2f} at first, {last:.2f} at last")
        print(write(predict, params, "def read(self, ", 100), flush=True)
    sj.shutdown()
    return 0 if last < 0.7 * first else 1


if __name__ == "__main__":
    sys.exit(main())
