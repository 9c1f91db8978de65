"""AutoByte's meta-network: from a model, a network and the sizes to the time of an iteration.

Layers, embedded to a fixed number, go through a two-layer LSTM; its last state and numbers about
the cluster and the sizes go through a small head to the logarithm of the iteration's time over
its compute. The head's last layer is what adapts to a job: its weights become those that a
Gaussian prior around the trained ones and the job's own measurements make most likely.

Inference is plain NumPy. The weights come with the package, in `autobyte.npz`, made by
`python -m sumpter_lab.autobyte.train`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sumpter import _native
from sumpter._errors import ConfigError
from sumpter.tuning.points import BUCKETS, KIB, MIB, Job, Point, link_bytes

FORMAT, VERSION = "sumpter-autobyte", 2
FILE = Path(__file__).with_name("autobyte.npz")
LAYERS, HIDDEN, HEAD = 2, 24, 32
# What it sees of each layer, and of the cluster and the sizes.
FEATURES, NUMBERS = 3, 9
# How far a job's measurements may move the last layer, over how much they scatter.
PRIOR = 0.01
# The binary logarithm of a bandwidth over what a job needs from which on more limits nothing: the
# most that the network was trained with. A rate at which sockets' buffers were filled is larger.
AMPLE = 3.0


def layer_features(job: Job) -> np.ndarray:
    """Shape (BUCKETS, 3): each layer's parts of the compute and of the bytes, from the input on."""
    totals = np.array([job.compute_s, job.compute_s, job.layers[:, 2].sum()])
    return job.layers / np.maximum(totals, 1e-12) * BUCKETS


def numbers(job: Job, point: Point) -> np.ndarray:
    """Shape (NUMBERS,): both bandwidths against what the job sends while it computes, as far as
    more of them matters, n and k, both sizes, bytes and compute of an iteration, and whether the
    forward pass overlaps."""
    sent = float(job.layers[:, 2].sum()) * link_bytes(job)
    compute = max(job.compute_s, 1e-9)
    up, down = (
        max(gbps, 1e-6) * 1e9 / 8 * compute / max(sent, 1.0)
        for gbps in (job.up_gbps, job.down_gbps)
    )
    return np.array(
        [
            min(np.log2(up), AMPLE),
            min(np.log2(down), AMPLE),
            np.log2(job.workers) - 2,
            np.log2(1 + job.servers) - 1,
            np.log2(_native.cut_bytes(point.partition, point.credit) / (32 * KIB)),
            (np.log2(point.credit / MIB) + 1) / 2,
            np.log2(max(job.layers[:, 2].sum(), 1.0) / (64 * MIB)) / 2,
            np.log2(compute / 0.3) / 2,
            float(job.overlaps),
        ]
    )


class MetaNetwork:
    """A trained network. Raises ConfigError for a file of another kind or version."""

    def __init__(self, path: Path = FILE) -> None:
        self._weights = weights = _read(path)
        self._trained = np.append(weights["last.weight"][0], weights["last.bias"])
        self.last = self._trained.copy()
        self._embedded: tuple[np.ndarray, np.ndarray] | None = None

    def phi(self, job: Job, points: Sequence[Point]) -> np.ndarray:
        """What the last layer sees: shape (points, HEAD + 1)."""
        layers = layer_features(job)
        # A job's layers stay mostly as they are, and this is the most of the work.
        if self._embedded is None or not np.array_equal(self._embedded[0], layers):
            self._embedded = layers, self._lstm(layers)
        state = self._embedded[1]
        features = np.stack([np.concatenate([state, numbers(job, one)]) for one in points])
        for name in ("first", "second"):
            weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
            features = np.tanh(features @ weight.T + bias)
        return np.hstack([features, np.ones((len(points), 1))])

    def speeds(self, job: Job, points: Sequence[Point]) -> np.ndarray:
        """Iterations a second at each point."""
        return np.exp(-self.phi(job, points) @ self.last) / max(job.compute_s, 1e-9)

    def adapt(self, seen: Sequence[tuple[Job, Point, float]]) -> None:
        """Transfer learning: the last layer that these speeds and the trained one make likely."""
        rows = np.vstack([self.phi(job, [point]) for job, point, _ in seen])
        truth = np.array([-np.log(speed * max(job.compute_s, 1e-9)) for job, _, speed in seen])
        miss = truth - rows @ self._trained
        gram = rows @ rows.T + PRIOR * np.eye(len(rows))
        self.last = self._trained + rows.T @ np.linalg.solve(gram, miss)

    def _lstm(self, sequence: np.ndarray) -> np.ndarray:
        state = np.zeros(HIDDEN)
        for layer in range(LAYERS):
            of_input, of_state, bias = (
                self._weights[f"lstm.{name}_l{layer}"]
                for name in ("weight_ih", "weight_hh", "bias")
            )
            state, cell, outputs = np.zeros(HIDDEN), np.zeros(HIDDEN), []
            for gates in sequence @ of_input.T + bias:
                # In torch's order: input, forget, cell, output.
                gates = gates + of_state @ state
                into, forget, new, out = np.split(gates, 4)
                cell = _sigmoid(forget) * cell + _sigmoid(into) * np.tanh(new)
                state = _sigmoid(out) * np.tanh(cell)
                outputs.append(state)
            sequence = np.array(outputs)
        return state


def _read(path: Path) -> dict[str, np.ndarray]:
    """The weights in a file, all of them and of the right shapes."""
    try:
        with np.load(path, allow_pickle=False) as file:
            weights = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise ConfigError(f"tuner autobyte: cannot read {path}: {error}") from None
    again = "make it anew with `python -m sumpter_lab.autobyte.train`"
    if str(weights.get("format")) != FORMAT:
        raise ConfigError(f"tuner autobyte: {path} is no file of a tuner: {again}")
    version = str(weights.get("version"))
    if version != str(VERSION):
        raise ConfigError(
            f"tuner autobyte: {path} is of version {version}, this is version {VERSION}: {again}"
        )
    for name, shape in _shapes().items():
        if name not in weights or weights[name].shape != shape:
            raise ConfigError(f"tuner autobyte: {path} has no {name} of shape {shape}: {again}")
    return weights


def _shapes() -> dict[str, tuple[int, ...]]:
    """The shape of each array of weights, as torch calls them."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(LAYERS):
        shapes[f"lstm.weight_ih_l{layer}"] = (4 * HIDDEN, HIDDEN if layer else FEATURES)
        shapes[f"lstm.weight_hh_l{layer}"] = (4 * HIDDEN, HIDDEN)
        shapes[f"lstm.bias_l{layer}"] = (4 * HIDDEN,)
    sizes = {"first": (HEAD, HIDDEN + NUMBERS), "second": (HEAD, HEAD), "last": (1, HEAD)}
    for name, shape in sizes.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))
