"""Makes the file of the meta-network: `python -m sumpter_lab.autobyte.train --replay FILE...`.

The training data are what `sumpter bench replay` measured, in its files, and the simulated
surfaces of sumpter_lab.autobyte.surface, for models whose layers are those of published
architectures or random, on random networks: few measurements say what is so, many simulations
what may be. The loss is the squared error (L2) of the logarithm of the time, and of how points of
one surface differ in it, which is what a tuner asks for. Needs torch. A seed makes the same file
again. `--leave-out PROFILE` leaves a model's measurements out, and says how well they are
predicted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sumpter._errors import SumpterError
from sumpter._sizes import parse_size
from sumpter.tuning.layers import of_profile, with_bytes
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
from sumpter.tuning.points import BUCKETS, GRID, MIB, Job, Point, link_bytes, point
from sumpter_lab import profiles
from sumpter_lab.autobyte.surface import Network, iteration_s
from sumpter_lab.scaffold.results.document import REPLAY, DocumentError

PUBLISHED = ("alexnet", "gpt2", "resnet18", "resnet50", "vgg16")
# One surface gives so many samples.
POINTS = 6
# Of a step of training: simulated surfaces, and samples that were measured.
SURFACES, MEASURED = 75, 64
# What differences between points of a surface weigh.
DIFFERENCES = 10.0
# What a job does, of what the replay bench compares: whether the forward pass overlaps.
OVERLAPS = {"paced": False, "overlap": True}
# The part of the cores' time that others may have taken from a measurement.
MOST_STOLEN = 0.1


@dataclass(frozen=True)
class Sample:
    """A job, its sizes, and the seconds of an iteration."""

    job: Job
    point: Point
    seconds: float
    profile: str = ""

    @property
    def y(self) -> float:
        """What the network predicts: the logarithm of the time over the compute."""
        return float(np.log(self.seconds / self.job.compute_s))


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
    layers[:, :2] *= 10 ** random.uniform(-1.7, 0.7) / layers[:, :2].sum()
    layers[:, 2] *= MIB * 2 ** random.uniform(3, 8.5) / layers[:, 2].sum()
    workers, servers = int(random.integers(2, 17)), int(random.integers(0, 9))
    job = Job(workers, servers, layers=layers)
    # From a network that is 32 times too slow to one that is eight times too fast.
    needed = layers[:, 2].sum() * link_bytes(job) / job.compute_s * 8 / 1e9
    gbps = float(needed * 2 ** random.uniform(-5, 3))
    down = gbps * (1.0 if random.random() < 0.7 else 2 ** random.uniform(0, 1.5))
    job = Job(workers, servers, gbps, down, bool(random.random() < 0.7), layers)
    own, answer = 10 ** random.uniform(-5.7, -4.3), 10 ** random.uniform(-4, -2.7)
    return job, Network(own, answer, random.uniform(0, 0.5))


def simulated(count: int, seed: int) -> list[Sample]:
    """So many samples of simulated surfaces."""
    random = np.random.default_rng(seed)
    known = [layers_of(name) for name in PUBLISHED]
    found: list[Sample] = []
    while len(found) < count:
        job, network = random_job(random, known)
        for index in random.choice(len(GRID), POINTS, replace=False):
            at = GRID[index]
            found.append(Sample(job, at, iteration_s(job, at, network)))
    return found[:count]


def measured(files: Sequence[Path]) -> list[Sample]:
    """What the replay bench measured, in its files, of models whose layers are published."""
    found: list[Sample] = []
    for file in files:
        for cell in REPLAY.read(file):
            try:
                found += samples_of(cell)
            except (KeyError, TypeError, AttributeError) as error:
                raise DocumentError(
                    f"{file}: a cell is not as `sumpter bench replay` writes it: {error!r}"
                ) from None
    return found


def samples_of(cell: dict[str, Any]) -> list[Sample]:
    """What a cell says of a job; nothing if its model's layers are not published."""
    if cell["profile"] not in profiles.NAMES:
        return []
    return [
        Sample(job_of(cell, OVERLAPS[system]), point_of(cell), one["seconds"], cell["profile"])
        for system, one in cell["systems"].items()
        if system in OVERLAPS and one["cores_steal"] <= MOST_STOLEN
    ]


def job_of(cell: dict[str, Any], overlaps: bool) -> Job:
    """The job of a cell, as small and as slow as it was."""
    layers = layers_of(cell["profile"])
    layers[:, :2] *= cell["compute_seconds"] / layers[:, :2].sum()
    gbps = cell["link_goodput_mbit"] / 1e3
    layers = with_bytes(layers, cell["bytes"])
    return Job(cell["workers"], cell["servers"], gbps, gbps, overlaps, layers)


def point_of(cell: dict[str, Any]) -> Point:
    """The sizes of a cell."""
    sizes = (cell["settings"][name] for name in ("partition_bytes", "credit_bytes"))
    return point(*(int(parse_size(size)) for size in sizes))


def arrays(samples: Sequence[Sample]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Layers, numbers, and what is to be predicted."""
    layers = np.array([layer_features(one.job) for one in samples], np.float32)
    others = np.array([numbers(one.job, one.point) for one in samples], np.float32)
    return layers, others, np.array([one.y for one in samples], np.float32)


@dataclass(frozen=True)
class Trained:
    """The weights, and the median errors of the predicted time on what was not learned from."""

    weights: dict[str, np.ndarray]
    simulated_error: float
    measured_error: float | None


def train(
    surfaces: Sequence[Sample], cells: Sequence[Sample], steps: int, seed: int, without: str = ""
) -> Trained:
    """Trains on nine tenths of the surfaces, and on the cells of all profiles but `without`."""
    import torch

    torch.manual_seed(seed)
    held = len(surfaces) // 10 // POINTS * POINTS
    kept = [cell for cell in cells if cell.profile != without]
    tested = [cell for cell in cells if cell.profile == without]
    learned = [*surfaces[held:], *kept]
    layers, others, ys = (torch.from_numpy(array) for array in arrays(learned))
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
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=steps)

    def predicted(layers: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        _, (state, _) = lstm(layers)
        features = torch.cat([state[-1], others], 1)
        features = torch.tanh(head["second"](torch.tanh(head["first"](features))))
        return head["last"](features)[:, 0]

    def error(samples: Sequence[Sample]) -> float:
        with torch.no_grad():
            layers, others, ys = (torch.from_numpy(array) for array in arrays(samples))
            return float((predicted(layers, others) - ys).abs().median().exp() - 1)

    first_cell = len(learned) - len(kept)
    for _ in range(steps):
        surface = torch.randint(0, first_cell // POINTS, (SURFACES, 1)) * POINTS
        at = (surface + torch.arange(POINTS)).flatten()
        if kept:
            at = torch.cat([at, torch.randint(first_cell, len(learned), (MEASURED,))])
        misses = predicted(layers[at], others[at]) - ys[at]
        of_surfaces = misses[: SURFACES * POINTS].view(SURFACES, POINTS)
        loss = misses.square().mean() + DIFFERENCES * of_surfaces.var(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return Trained(
        _arrays_of(lstm, head),
        error(surfaces[:held]),
        error(tested) if tested else None,
    )


def _arrays_of(lstm: Any, head: Any) -> dict[str, np.ndarray]:
    """The weights, by the names of `autobyte.npz`."""
    weights = {name: value.numpy() for name, value in head.state_dict().items()}
    state = lstm.state_dict()
    for layer in range(LAYERS):
        weights[f"lstm.weight_ih_l{layer}"] = state[f"weight_ih_l{layer}"].numpy()
        weights[f"lstm.weight_hh_l{layer}"] = state[f"weight_hh_l{layer}"].numpy()
        bias = state[f"bias_ih_l{layer}"] + state[f"bias_hh_l{layer}"]
        weights[f"lstm.bias_l{layer}"] = bias.numpy()
    return weights


def main() -> None:
    """Trains, and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replay", type=Path, nargs="*", default=[], help="files of bench replay")
    parser.add_argument("--samples", type=int, default=24_000, help="of simulated surfaces")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument(
        "--leave-out",
        nargs="*",
        default=[],
        metavar="PROFILE",
        help="train without a profile's measurements, test with them, and write nothing",
    )
    given = parser.parse_args()
    if given.samples < 10 * POINTS or given.steps < 1:
        parser.error(f"give --samples {10 * POINTS} at least, and --steps 1")
    if not given.out.parent.is_dir():
        parser.error(f"--out {given.out}: there is no folder {given.out.parent}")
    began = time.monotonic()
    try:
        cells = measured(given.replay)
    except SumpterError as error:
        parser.error(str(error))
    surfaces = simulated(given.samples, given.seed)
    for name in given.leave_out:
        if not any(cell.profile == name for cell in cells):
            parser.error(f"--leave-out {name}: nothing of that in the files of --replay")
        trained = train(surfaces, cells, given.steps, given.seed, name)
        print(f"{name}: median error {trained.measured_error:.1%} of what it has not seen")
    if given.leave_out:
        return
    trained = train(surfaces, cells, given.steps, given.seed)
    np.savez_compressed(given.out, format=FORMAT, version=VERSION, **trained.weights)
    seconds = time.monotonic() - began
    data = f"{len(surfaces)} simulated and {len(cells)} measured samples"
    error = f"median error {trained.simulated_error:.1%} on surfaces that it has not seen"
    print(f"{given.out}: {data}, {error}, {seconds:.0f} s")


if __name__ == "__main__":
    main()
