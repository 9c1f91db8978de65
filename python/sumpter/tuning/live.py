"""Changing the sizes of the running job: what `sumpter.tune()` does."""

from __future__ import annotations

import json

from sumpter import _session
from sumpter._errors import ConfigError

Settings = dict[str, int | str]


def tune(
    *,
    partition: int | str | None = None,
    credit: int | str | None = None,
    chunk: int | str | None = None,
    tuner: str | None = None,
    reset: bool = False,
) -> Settings:
    """Changes settings of the running job, on all ranks from the same moment on.

    Sizes are bytes, as numbers or texts such as "1MiB". What is not named stays as it is; `reset`
    first takes back what was changed since the start. A size that is named stays: a tuner that is
    at work stops, unless `tuner` names one. Any rank may call this, at any time; no operation is
    lost or different for it. Returns, once this rank has gone over, the settings in force:
    `partition_bytes`, `chunk_bytes`, `credit_bytes` and `tuner`.

    Raises ConfigError, and changes nothing, for what cannot be: a size out of its range, a credit
    under a partition, a chunk over a partition, an unknown tuner.
    """
    named = {"partition": partition, "credit": credit, "chunk": chunk, "tuner": tuner}
    changes = {name: str(value) for name, value in named.items() if value is not None}
    if not changes and not reset:
        raise ConfigError("nothing to change: give partition, credit, chunk, tuner or reset")
    worker = _session.current().worker
    epoch = worker.tune(changes, reset=reset)
    return settings_of(worker.plan(epoch))


def settings() -> Settings:
    """What may change of the running job's settings, as it is now."""
    return settings_of(_session.current().worker.plan())


def settings_of(plan: str) -> Settings:
    """The settings of a plan, as the native worker tells it."""
    texts = json.loads(plan)["settings"]
    return {name: int(text) if text.isdigit() else text for name, text in texts.items()}
