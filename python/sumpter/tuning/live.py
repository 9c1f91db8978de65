"""Changing the sizes of the running job: what `sumpter.tune()` does."""

from __future__ import annotations

import json
from pathlib import Path

from sumpter import profiles
from sumpter._core import membership
from sumpter._errors import ConfigError

Settings = dict[str, int | str]


def tune(
    *,
    partition: int | str | None = None,
    credit: int | str | None = None,
    chunk: int | str | None = None,
    tuner: str | None = None,
    profile: str | Path | None = None,
    reset: bool = False,
) -> Settings:
    """Changes settings of the running job, on all ranks from the same moment on.

    Sizes are bytes, as numbers or texts such as "1MiB". What is not named stays as it is; `reset`
    first takes back what was changed since the start. A size that is named stays: a tuner that is
    at work stops, unless `tuner` names one. Any rank may call this, at any time; no operation is
    lost or different for it. `profile` is a file of `sumpter record`: the tuner `autobyte` then
    takes the times of the model's layers from it, and not all as equally long; it is for rank 0,
    where the tuner works. Returns, once this rank has gone over, the settings in force:
    `partition_bytes`, `chunk_bytes`, `credit_bytes` and `tuner`.

    Raises ConfigError, and changes nothing, for what cannot be: a size out of its range, a credit
    under a partition, a chunk over a partition, an unknown tuner; ProfileError for a profile that
    cannot be read.
    """
    session = membership.current()
    known = None if profile is None else profiles.load(profile)
    if known is not None and session.rank != 0:
        raise ConfigError("profile: the tuner works in rank 0, so give the profile there")
    named = {"partition": partition, "credit": credit, "chunk": chunk, "tuner": tuner}
    changes = {name: str(value) for name, value in named.items() if value is not None}
    if not changes and not reset and known is None:
        raise ConfigError(
            "nothing to change: give partition, credit, chunk, tuner, profile or reset"
        )
    epoch = session.worker.tune(changes, reset=reset) if changes or reset else 0
    if known is not None:
        session.profile = known
    return settings_of(session.worker.plan(epoch))


def settings() -> Settings:
    """What may change of the running job's settings, as it is now."""
    return settings_of(membership.current().worker.plan())


def settings_of(plan: str) -> Settings:
    """The settings of a plan, as the native worker reports it."""
    texts = json.loads(plan)["settings"]
    return {name: int(text) if text.isdigit() else text for name, text in texts.items()}
