"""Logistic regression in NumPy, in a training loop of its own: sumpter.service keeps the weights.

    python examples/service_logistic.py                             starts two workers itself
    sumpter run -n 2 -s 1 -- python examples/service_logistic.py    with a server as well

Every worker computes gradients on its share of the digits; they are summed, and Adam is applied,
on the servers or, without any, in the workers' own lanes.
"""

import multiprocessing
import os
import sys

import numpy as np
from sklearn.datasets import load_digits

from sumpter import service

WORKERS = 2  # where nothing else has started them
STEPS = 120
TARGET = 0.9


def load_split() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images with a constant column, and labels; every fifth of all is held out."""
    digits = load_digits()
    images = np.column_stack([digits.data / 16.0, np.ones(len(digits.data))]).astype(np.float32)
    held_out = np.arange(len(images)) % 5 == 0
    return images[~held_out], digits.target[~held_out], images[held_out], digits.target[held_out]


def gradient(weights: np.ndarray, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Of the mean cross-entropy of softmax(images @ weights)."""
    scores = images @ weights
    likely = np.exp(scores - scores.max(axis=1, keepdims=True))
    likely /= likely.sum(axis=1, keepdims=True)
    likely[np.arange(len(labels)), labels] -= 1.0
    return images.T @ likely / len(labels)


def train(hub: service.Connection) -> int:
    images, labels, test_images, test_labels = load_split()
    own = slice(hub.rank, None, hub.size)
    images, labels = images[own], labels[own]
    weights = np.zeros((images.shape[1], 10), np.float32)
    hub.init_variable("weights", weights, "adam", lr=0.05)
    for step in range(STEPS):
        if step == STEPS // 2:
            hub.set_hyperparameters("weights", lr=0.01)
        weights = hub.push_pull("weights", gradient(weights, images, labels))
    if hub.rank != 0:
        return 0
    accuracy = float(np.mean((test_images @ weights).argmax(axis=1) == test_labels))
    print(f"accuracy on {len(test_labels)} held-out digits: {accuracy:.2%}", flush=True)
    return int(accuracy < TARGET)


def work(ticket: service.Ticket | None = None, rank: int | None = None) -> None:
    """One worker, of the namespace of a ticket or of the job that the environment names."""
    with service.connect(ticket, rank) as hub:
        code = train(hub)
    sys.exit(code)


def main() -> int:
    if "SUMPTER_COORDINATOR" in os.environ:
        work()
    processes = multiprocessing.get_context("spawn")
    with service.create_service("digits", workers=WORKERS) as made:
        workers = [
            processes.Process(target=work, args=(made.ticket, rank)) for rank in range(WORKERS)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return int(any(worker.exitcode for worker in workers))


if __name__ == "__main__":
    sys.exit(main())
