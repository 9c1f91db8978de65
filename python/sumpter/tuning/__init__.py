"""What a job runs with while it runs: changing it, and who chooses it.

`live` changes it. A tuner (`points.Tuner`) is a pure function of what was measured: `search` has
those that try points, `autobyte` the one that predicts; `driver` lets one work on a running job.
The laboratory (`sumpter_lab.autobyte`) simulates one and trains AutoByte's network.
"""

from sumpter.tuning.live import settings, tune

__all__ = ["settings", "tune"]
