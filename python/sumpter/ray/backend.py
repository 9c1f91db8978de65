"""The backend of Ray Train: what happens before and after a group of workers trains.

Ray makes the object in the driver and copies it into the controller of each run, where it stays
for all groups of workers of the run.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from ray.train.torch import TorchConfig

from sumpter.ray import job

if TYPE_CHECKING:
    from ray.train._internal.base_worker_group import BaseWorkerGroup

    from sumpter.ray.config import SumpterConfig

_TorchBackend: type = TorchConfig().backend_cls


class SumpterBackend(_TorchBackend):
    """A job for each group of workers, and the process group over it."""

    def __init__(self) -> None:
        super().__init__()
        self._job: ExitStack | None = None
        self._has_trained = False

    def on_start(self, worker_group: BaseWorkerGroup, backend_config: SumpterConfig) -> None:
        """Ray has placed the workers: starts their job."""
        try:
            self._job = job.start(worker_group, backend_config, must_help=not self._has_trained)
            if backend_config.process_group:
                super().on_start(worker_group, backend_config)
        except BaseException:
            # Ray forgets a group that has not started, and its places stay reserved until the
            # driver ends.
            worker_group.shutdown()
            raise
        self._has_trained = True
        self._end_with(worker_group)

    def on_shutdown(self, worker_group: BaseWorkerGroup, backend_config: SumpterConfig) -> None:
        """The workers have trained, or some have failed: ends their job."""
        try:
            super().on_shutdown(worker_group, backend_config)
        finally:
            self._end()

    def _end_with(self, worker_group: BaseWorkerGroup) -> None:
        """Ends the job when the run is aborted, as by Ctrl-C.

        Ray tells no backend of it, and an exit handler of the controller cannot call Ray any more.
        """
        abort = worker_group.abort

        def abort_and_end() -> None:
            try:
                abort()
            finally:
                self._end()

        worker_group.abort = abort_and_end

    def _end(self) -> None:
        running, self._job = self._job, None
        if running is not None:
            running.close()
