"""Trains every model with every codec and every seed, on the processes of one job."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

from sumpter._failure import Failure
from sumpter_lab.convergence.spec import Case, Spec, Training
from sumpter_lab.scaffold.jobs import remote
from sumpter_lab.scaffold.jobs.emulated import EmulatedJob, emulated_job
from sumpter_lab.scaffold.jobs.remote import call_all
from sumpter_lab.scaffold.network.cluster import Machine
from sumpter_lab.scaffold.network.site import Loopback
from sumpter_lab.scaffold.signals import orderly

# Only so that a hang ends; other processes may have the cores.
PATIENCE_S = 1800.0
# Between two signs of progress.
STEPS_AT_ONCE = 10

Trained = dict[str, Any]


def check() -> None:
    """Raises Failure where the data of a model cannot be had."""
    if importlib.util.find_spec("sklearn") is None:
        raise Failure("the digits are scikit-learn's: pip install scikit-learn, or --model gpt")


def run(asked: Spec, advance: Callable[[int], None]) -> Iterator[Trained]:
    """Each training as it ends; `advance` is called with the steps since it was last."""
    remote.preload("sumpter_lab.convergence.rank")
    workers = [_machine("gpu", index) for index in range(asked.workers)]
    servers = [_machine("cpu", index) for index in range(asked.servers)]
    # Each with a machine of its own, else they would add in one memory and encode nothing.
    own = {machine.name: {"machine": machine.name} for machine in (*workers, *servers)}
    settings = {"lanes": "1", **asked.settings}
    with (
        orderly(),
        emulated_job(
            *(workers, servers, settings, {}, ((1,),), (), "CodecTrainer"), own_settings=own
        ) as job,
    ):
        for training in asked.trainings:
            for seed in range(1, asked.seeds + 1):
                for case in asked.cases:
                    yield _train(job, training, case, seed, advance)


def _machine(role: str, index: int) -> Machine:
    return Machine(role, index, "", Loopback.address, 0.0)


def _train(
    job: EmulatedJob, training: Training, case: Case, seed: int, advance: Callable[[int], None]
) -> Trained:
    call_all(job.workers, PATIENCE_S, "begin", training, case, seed)
    for step in range(0, training.steps, STEPS_AT_ONCE):
        count = min(STEPS_AT_ONCE, training.steps - step)
        call_all(job.workers, PATIENCE_S, "steps", count)
        advance(count)
    found = call_all(job.workers, PATIENCE_S, "end")
    if len({rank["digest"] for rank in found}) > 1:
        raise Failure(f"{training.model}, {case.name}, seed {seed}: ranks have other parameters")
    sent = [rank["sent_bytes_per_step"] for rank in found]
    return {
        "model": training.model,
        "codec": case.name,
        "momentum_of": "codec" if case.has_momentum else "optimizer",
        "seed": seed,
        "loss": found[0]["loss"],
        "held_out_loss": found[0]["held_out_loss"],
        "sent_bytes_per_step": sum(sent) / len(sent),
    }
