"""What a user says of a run: `SumpterConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ray.train.torch import TorchConfig

from sumpter._assignments import check_free, setting_text
from sumpter._errors import ConfigError
from sumpter._failure import UsageError

# Settings that follow from Ray's own statements, or from other fields.
_DECIDED = (
    *("rank", "world_size", "local_rank", "local_size", "machine", "coordinator", "servers"),
    *("token", "token_file", "metrics_port", "min_workers", "max_workers"),
)


@dataclass
class SumpterConfig(TorchConfig):
    """Has a `TorchTrainer` of Ray train over Sumpter, with helpers on CPU nodes.

    Pass it as `torch_config`. The process group of the training function is of the backend
    "sumpter", so that DistributedDataParallel and `ray.train.torch.prepare_model` use it, and
    `sumpter.torch.init()` joins the same job. Raises ConfigError for what cannot work.

    Args:
        backend: As in `TorchConfig`; "sumpter" must be among its backends.
        init_method: As in `TorchConfig`.
        timeout_s: As in `TorchConfig`: how long an operation may take.
        helpers: How many servers carry summation, each on a node of its own that has no
            accelerator and runs no rank of the job.
        resources_per_helper: What Ray reserves for each. A helper uses as many cores as it has
            CPUs here.
        helper_label_selector: Labels of the nodes that may have helpers (as in Ray's
            `label_selector`), in place of the rule above.
        settings: Sumpter's settings by name, for all processes of the job.
        listen: HOST:PORT of the job's coordinator, which runs on the driver's node; by default a
            free port of all interfaces.
        metrics_port: Port at which the coordinator tells Prometheus what it counts.
        process_group: False leaves it to the training function to call
            `torch.distributed.init_process_group("sumpter")` or `sumpter.torch.init()`, as a
            script for `sumpter run` or torchrun does.
    """

    backend: str | None = "sumpter"
    helpers: int = 0
    resources_per_helper: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1})
    helper_label_selector: Mapping[str, str] | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    listen: str = ""
    metrics_port: int | None = None
    process_group: bool = True

    def __post_init__(self) -> None:
        named = [part.rpartition(":")[2] for part in (self.backend or "").split(",")]
        if "sumpter" not in named:
            raise ConfigError(
                f"SumpterConfig(backend={self.backend!r}): it must name the backend sumpter; for "
                "others use Ray's TorchConfig"
            )
        if isinstance(self.helpers, bool) or not isinstance(self.helpers, int) or self.helpers < 0:
            raise ConfigError(
                f"SumpterConfig(helpers={self.helpers!r}): it must be a number from 0 on"
            )
        self._check_resources()
        try:
            check_free(self.texts, _DECIDED, "SumpterConfig(settings): ", "Ray Train")
        except UsageError as error:
            raise ConfigError(str(error)) from None

    def _check_resources(self) -> None:
        for name, amount in self.resources_per_helper.items():
            if isinstance(amount, bool) or not isinstance(amount, int | float) or amount < 0:
                raise ConfigError(
                    f"SumpterConfig(resources_per_helper): {name} is {amount!r}, not an amount"
                )
        if self.helpers and not self.resources_per_helper.get("CPU", 0):
            raise ConfigError(
                "SumpterConfig(resources_per_helper): a helper needs CPUs, as in "
                '{"CPU": 4}: it sums'
            )

    @property
    def texts(self) -> dict[str, str]:
        """The settings as texts."""
        return {name: setting_text(value) for name, value in self.settings.items()}

    @property
    def backend_cls(self) -> type:
        from sumpter.ray.backend import SumpterBackend

        return SumpterBackend

    def to_dict(self) -> dict[str, Any]:
        """What Ray keeps of it as the run's state."""
        return {
            **super().to_dict(),
            "helpers": self.helpers,
            "resources_per_helper": dict(self.resources_per_helper),
            "helper_label_selector": dict(self.helper_label_selector or {}),
            "settings": self.texts,
            "listen": self.listen,
            "metrics_port": self.metrics_port,
            "process_group": self.process_group,
        }
