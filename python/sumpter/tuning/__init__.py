"""What a job runs with while it runs: changing it, and who chooses it.

`live` changes it. A tuner (`points.Tuner`) is a pure function of what was measured: `search` has
those that try points, `autobyte` the one that predicts; `driver` lets one work on a running job.
The laboratory (`sumpter_lab.autobyte`) simulates one and trains AutoByte's network.
"""

from sumpter._core.session import Session, at_open
from sumpter.tuning.live import settings, tune

__all__ = ["settings", "tune"]


def _start(session: Session) -> None:
    """Starts the thread in which a tuner works, if the plan names one or once it does."""
    if session.rank == 0 and session.world_size > 1:
        from sumpter.tuning.driver import Driver

        Driver(session).start()


at_open.append(_start)
