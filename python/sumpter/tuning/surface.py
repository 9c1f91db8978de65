"""A simulated speed surface: what an iteration takes with given partitions and credit.

One worker's link, as ByteScheduler (SOSP'19, section 4) models it: gradients become ready in the
backward pass, the last layer's first; what is wanted first in the next forward pass is sent
first; a partition that has begun is not interrupted; each costs a fixed time of its own; and of
what is under way there is no more than the credit, so that a small credit cannot fill a link that
takes a while to answer. The bytes of a link are those of the planning rule. It says how sizes
trade off, not what a cluster will do: `sumpter bench replay` measures that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sumpter.tuning.points import Job, Point


@dataclass(frozen=True)
class Network:
    """What a job cannot know in advance."""

    partition_s: float = 100e-6  # each partition's own cost
    answer_s: float = 1e-3  # until a partition that was sent is summed and back
    overlap_forward: bool = False


def link_bytes(job: Job) -> float:
    """Bytes a worker's link carries each way for each byte of a gradient, as in OSDI'20."""
    n, k = job.workers, job.servers
    if n < 2:
        return 0.0
    return max(2 * n * (n - 1) / (n * n + k * n - 2 * k), 1.0 if k >= n else 0.0)


def iteration_s(job: Job, point: Point, network: Network) -> float:
    """The seconds of one iteration."""
    forward, backward, sizes = job.layers.T
    rate = min(job.up_gbps, job.down_gbps) * 1e9 / 8 / max(link_bytes(job), 1e-9)
    rate = min(rate, point.credit / network.answer_s)
    count = len(sizes)
    ready = np.cumsum(backward[::-1])[::-1]  # the last layer's gradient is ready first
    done = _sent(ready, sizes, (point.partition, point.credit), (rate, network.partition_s))
    done = done + network.answer_s
    if not network.overlap_forward:
        return float(max(done.max(), ready[0]) + forward.sum())
    at = ready[0]
    for layer in range(count):
        at = max(at, done[layer]) + forward[layer]
    return float(at)


def _sent(
    ready: np.ndarray, sizes: np.ndarray, plan: tuple[int, int], link: tuple[float, float]
) -> np.ndarray:
    """When the last byte of each layer has been sent."""
    (partition, credit), (rate, partition_s) = plan, link
    count = len(sizes)
    left, done = sizes.astype(float).copy(), np.zeros(count)
    queue: list[tuple[int, float]] = []  # admitted, in order
    admitted, now, unready = 0.0, float(ready[-1]), count - 1
    while True:
        while unready >= 0 and ready[unready] <= now + 1e-12:
            unready -= 1
        while admitted < credit:
            first = next((i for i in range(unready + 1, count) if left[i] > 0), None)
            if first is None:
                break
            size = min(partition, left[first])
            left[first] -= size
            admitted += size
            queue.append((first, size))
        if queue:
            layer, size = queue.pop(0)
            admitted -= size
            now += size / rate + partition_s
            done[layer] = now
        elif unready >= 0:
            now = float(ready[unready])
        else:
            return done
