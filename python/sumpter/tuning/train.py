"""Makes the file of the meta-network: `python -m sumpter.tuning.train [--samples N] [--out FILE]`.

The training data are the simulated surfaces of sumpter.tuning.surface, for models whose layers
are those of published architectures or random, on random networks; the loss is the squared error
(L2) of the logarithm of the time. Needs torch. A seed makes the same file again.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from sumpter import profiles
from sumpter.tuning.layers import of_profile
from sumpter.tuning.network import (
    FILE,
    FORMAT,
    HEAD,
    HIDDEN,
    LAYERS,
    VERSION,
    layer_features,
    numbers,
)
from sumpter.tuning.points import BUCKETS, GRID, MIB, Job, Point
from sumpter.tuning.surface import Network, iteration_s, link_bytes

PUBLISHED = ("alexnet", "gpt2", "resnet18", "resnet50", "vgg16")
# One surface gives so many samples.
POINTS = 6


def layers_of(name: str) -> np.ndarray:
    """The layers of a published architecture: shape (BUCKETS, 3)."""
    layers = of_profile(profiles.published(name, 32))
    if layers[:, 0].sum() == 0:
        layers[:, 0] = layers[:, 1] / 2
    return layers


def random_job(random: np.random.Generator, known: list[np.ndarray]) -> tuple[Job, Network]:
    """A job and a network, of anywhere near what is trained today."""
    layers = known[random.integers(len(known))].copy()
    if random.random() < 0.5:
        layers = random.lognormal(0, 1, (BUCKETS, 3))
    layers[:, :2] *= random.uniform(0.02, 0.5) / layers[:, :2].sum()
    layers[:, 2] *= MIB * 2 ** random.uniform(3, 8.5) / layers[:, 2].sum()
    workers, servers = int(random.integers(2, 17)), int(random.integers(0, 9))
    job = Job(workers, servers, layers=layers)
    # From a network that is four times too slow to one that is eight times too fast.
    needed = layers[:, 2].sum() * link_bytes(job) / job.compute_s * 8 / 1e9
    gbps = float(needed * 2 ** random.uniform(-2, 3))
    down = gbps * (1.0 if random.random() < 0.7 else 2 ** random.uniform(0, 1.5))
    job = Job(workers, servers, gbps, down, layers)
    own = 10 ** random.uniform(-4.7, -3.3)
    return job, Network(own, 10 ** random.uniform(-3.7, -2.7), random.random() < 0.7)


def samples(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Layers, numbers, and the logarithm of the time over the compute."""
    random = np.random.default_rng(seed)
    known = [layers_of(name) for name in PUBLISHED]
    rows: list[tuple[np.ndarray, np.ndarray, float]] = []
    while len(rows) < count:
        job, network = random_job(random, known)
        for index in random.choice(len(GRID), POINTS, replace=False):
            point: Point = GRID[index]
            y = float(np.log(iteration_s(job, point, network) / job.compute_s))
            rows.append((layer_features(job), numbers(job, point), y))
    layers, others, ys = zip(*rows[:count], strict=True)
    return np.array(layers, np.float32), np.array(others, np.float32), np.array(ys, np.float32)


def train(count: int, epochs: int, seed: int) -> tuple[dict[str, np.ndarray], float]:
    """The weights, and the median error of the predicted time on surfaces it has not seen."""
    import torch

    torch.manual_seed(seed)
    layers, others, ys = (torch.from_numpy(array) for array in samples(count, seed))
    lstm = torch.nn.LSTM(3, HIDDEN, LAYERS, batch_first=True)
    head = torch.nn.ModuleDict(
        {
            "first": torch.nn.Linear(HIDDEN + others.shape[1], HEAD),
            "second": torch.nn.Linear(HEAD, HEAD),
            "last": torch.nn.Linear(HEAD, 1),
        }
    )
    parameters = [*lstm.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-3)
    held = count // 10 // POINTS * POINTS
    batch, steps = 512, epochs * ((count - held) // 512 + 1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)

    def predicted(at: torch.Tensor) -> torch.Tensor:
        _, (state, _) = lstm(layers[at])
        features = torch.cat([state[-1], others[at]], 1)
        features = torch.tanh(head["second"](torch.tanh(head["first"](features))))
        return head["last"](features)[:, 0]

    for _ in range(steps):
        at = torch.randint(held, count, (batch,))
        loss = (predicted(at) - ys[at]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        error = (predicted(torch.arange(held)) - ys[:held]).abs().median().exp() - 1
    weights = {
        f"{name}.{key}": value.numpy()
        for name, module in head.items()
        for key, value in module.state_dict().items()
    }
    state = lstm.state_dict()
    for layer in range(LAYERS):
        weights[f"lstm.weight_ih_l{layer}"] = state[f"weight_ih_l{layer}"].numpy()
        weights[f"lstm.weight_hh_l{layer}"] = state[f"weight_hh_l{layer}"].numpy()
        bias = state[f"bias_ih_l{layer}"] + state[f"bias_hh_l{layer}"]
        weights[f"lstm.bias_l{layer}"] = bias.numpy()
    return weights, float(error)


def main() -> None:
    """Trains, and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=24_000)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=FILE)
    given = parser.parse_args()
    began = time.monotonic()
    weights, error = train(given.samples, given.epochs, given.seed)
    np.savez_compressed(given.out, format=FORMAT, version=VERSION, **weights)
    seconds = time.monotonic() - began
    print(f"{given.out}: {given.samples} samples, median error {error:.1%}, {seconds:.0f} s")


if __name__ == "__main__":
    main()
