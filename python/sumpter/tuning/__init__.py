"""What a job runs with while it runs: changing it, and who chooses it."""

from sumpter.tuning.live import settings, tune

__all__ = ["settings", "tune"]
