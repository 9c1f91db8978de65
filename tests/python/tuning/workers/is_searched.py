"""Works while a tuner changes the sizes, then while another one is asked for."""

from __future__ import annotations

import sys
import threading

import numpy as np

import sumpter
from common import FOLDER, RANK, WORLD_SIZE
from sumpter.profiles import save
from sumpter.tuning import driver, settings
from sumpter_lab import profiles

if sys.argv[1] == "bayes":
    # Which takes seconds: the job would be over.
    import bayes_opt  # noqa: F401

GROUPS = 34
# So many steps that no machine is too slow for the tuner to begin meanwhile.
MOST = 20_000

began = threading.Event()
say = driver.say


def heard(text: str) -> None:
    say(text)
    if "autobyte begins" in text:
        began.set()


def work(steps: int) -> None:
    for step in range(steps):
        total = sumpter.push_pull(np.full(50_000, RANK + step, np.float32), False, "gradient")
        assert (total == sum(range(WORLD_SIZE)) + WORLD_SIZE * step).all()


driver.say = heard
sumpter.init(tuner=sys.argv[1])
assert settings()["tuner"] == sys.argv[1]
work(GROUPS * 12)
if RANK == 1:
    # What a person asks for stays.
    assert sumpter.tune(partition="2MiB", credit="2MiB")["tuner"] == "fixed"
sumpter.barrier()
work(50)
sumpter.barrier()
assert settings()["partition_bytes"] == 2 << 20 and settings()["tuner"] == "fixed"
sumpter.barrier()
if RANK == 1:
    assert sumpter.tune(tuner="autobyte")["tuner"] == "autobyte"
known = FOLDER / f"{RANK}.json"
save(profiles.published("alexnet", 1), known)
if RANK == 0:
    assert sumpter.tune(profile=known)["partition_bytes"] == 2 << 20
# No such file; and the tuner works in rank 0.
for profile in [FOLDER / "absent.json"] + ([known] if RANK == 1 else []):
    try:
        sumpter.tune(tuner="fixed", profile=profile)
    except sumpter.SumpterError as error:
        assert "absent.json" in str(error) or "rank 0" in str(error), error
    else:
        raise AssertionError(f"{profile} was taken")
for _ in range(0, MOST, 60):
    work(60)
    if sumpter.push_pull(np.full(1, began.is_set(), np.float32), False, "began")[0]:
        break
sumpter.shutdown()
