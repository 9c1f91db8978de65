"""Training with Sumpter gives the result of one process, for any placement and in every run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import needs
import sumpter.torch as hvd
from jobs import Job

# Smaller than the model's largest layers, so that tensors are cut and spread over servers.
PARTITION = "4KiB"


@pytest.mark.parametrize("servers", [0, 1, 2])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_way_to_train_equals_one_process(
    make_job: Callable[..., Job], ranks: int, servers: int
) -> None:
    job = make_job(ranks, servers, partition_bytes=PARTITION)
    job.start("training.py").finish()
    for rank in range(1, ranks):
        assert job.result(rank) == job.result(0), f"ranks 0 and {rank} ended with different bytes"


def test_deterministic_runs_give_the_same_bytes(make_job: Callable[..., Job]) -> None:
    # Four ranks, because two numbers add up to the same in either order.
    results = set()
    for servers in (1, 1, 0):
        job = make_job(4, servers, partition_bytes=PARTITION, deterministic=True)
        job.start("training.py").finish()
        results.update(job.result(rank) for rank in range(4))
    assert len(results) == 1


# So have those of other fronts, which tests in their frameworks' environments compare.
def test_deterministic_sums_have_the_bytes_of_the_numpy_front(make_job: Callable[..., Job]) -> None:
    found = set()
    for front in ("torch", "numpy"):
        job = make_job(2, 1, deterministic=True)
        for rank in range(job.ranks):
            job.start_rank(rank, "same_bytes.py", TEST_FRONT=front)
        job.finish()
        found |= {job.result(rank) for rank in range(job.ranks)}
    assert len(found) == 1


@pytest.mark.parametrize("servers", [0, 1, 2])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_placed_bytes_train_to_the_bytes_of_tcp(
    make_job: Callable[..., Job], ranks: int, servers: int
) -> None:
    results = set()
    for name in reversed(needs.FABRICS):
        settings = needs.fabric(name)
        job = make_job(ranks, servers, partition_bytes=PARTITION, deterministic=True, **settings)
        job.start("training.py").finish()
        results.update(job.result(rank) for rank in range(ranks))
        placed = any("bytes are placed" in job.output(rank) for rank in range(ranks))
        # A worker alone may need no server.
        assert placed == (name == "libfabric") or (ranks == 1 and not placed), job.report(name)
    assert len(results) == 1


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"on_servers": True},
        {"on_servers": True, "deferred": True},
        {"overlap_forward": True},
        {"on_servers": True, "overlap_forward": True},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_hooks_of_a_step_run_once_also_when_a_state_was_loaded(options: dict[str, bool]) -> None:
    model = torch.nn.Linear(4, 4)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), **options)
    calls: list[int] = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    for step in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        assert len(calls) == step + 1
        optimizer.load_state_dict(optimizer.state_dict())
