"""Fig. 9 of BytePS: what a server would do if it ran the optimizer: bytes of parameters a second
of SGD, RMSprop and Adam on its cores, against those of summation alone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from sumpter_lab.local import memory, rivals
from sumpter_lab.local.kernels import WrongResult
from sumpter_lab.local.timing import Runner, Step, medians, native
from sumpter_lab.scaffold.results.table import Row

if TYPE_CHECKING:
    from sumpter_lab.local.ablations import Size

# Parameters come in tensors of this size, as in a model.
_TENSOR_BYTES = 4 << 20

# Learning rate of every optimizer; a power of two, so that one SGD step is exact.
_RATE = 2.0**-10


class TorchMissing(Exception):
    """torch is not installed."""


def optimizers(size: Size) -> list[Row]:
    """A row for each optimizer, implementation and number of threads."""
    torch = rivals.load_torch()
    if torch is None:
        raise TorchMissing("optimizers come from torch, which is not installed")
    rows = []
    for threads in size.threads:
        with rivals.torch_threads(torch, threads):
            runners: dict[str, Runner] = {"sum": _summation(size.bytes)}
            for name, kinds in _implementations(torch).items():
                for kind, options in kinds.items():
                    runners[f"{name} {kind}"] = _stepper(torch, name, options, size.bytes)
            seconds = medians(runners, size.rounds, turn_s=0.02)
            # Summation by one lane; lanes share nothing, so each thread adds its own.
            rate = {name: size.bytes / took / 1e9 for name, took in seconds.items()}
            for name, gb_per_s in rate.items():
                row: Row = {"threads": 1 if name == "sum" else threads, "server_runs": name}
                row |= {"gb_per_s": gb_per_s, "of_summation": gb_per_s / rate["sum"]}
                rows.append(row | {"equal_results": True})
    # One thread sums, whatever torch uses: say it once.
    seen: list[tuple[int, str]] = []
    return [
        row
        for row in rows
        if (key := (row["threads"], row["server_runs"])) not in seen and not seen.append(key)
    ]


def _implementations(torch: Any) -> dict[str, dict[str, dict[str, Any]]]:
    fused = {"foreach": {"foreach": True}, "fused": {"fused": True}}
    return {"SGD": fused, "RMSprop": {"foreach": {"foreach": True}}, "Adam": fused}


def _summation(total_bytes: int) -> Runner:
    count = total_bytes // 4
    acc, x = memory.ones(count, "float32"), memory.ones(count, "float32")
    return native(Step("sum", "float32", acc, x, count))


def _parameters(torch: Any, total_bytes: int) -> list[Any]:
    tensors = []
    for at in range(0, total_bytes, _TENSOR_BYTES):
        count = min(_TENSOR_BYTES, total_bytes - at) // 4
        tensor = torch.from_numpy(memory.ones(count, "float32")).requires_grad_()
        tensor.grad = torch.from_numpy(memory.ones(count, "float32"))
        tensors.append(tensor)
    return tensors


def _stepper(torch: Any, name: str, options: dict[str, Any], total_bytes: int) -> Runner:
    parameters = _parameters(torch, total_bytes)
    optimizer = getattr(torch.optim, name)(parameters, lr=_RATE, **options)
    optimizer.step()
    _verify(name, options, parameters)

    def run(repeats: int) -> float:
        started = time.perf_counter()
        for _ in range(repeats):
            optimizer.step()
        return time.perf_counter() - started

    return run


def _verify(name: str, options: dict[str, Any], parameters: list[Any]) -> None:
    """The first step of each optimizer with a gradient of ones is known in closed form."""
    # RMSprop divides by the root of its first average, 0.01; Adam's corrections cancel.
    step = {"SGD": _RATE, "RMSprop": _RATE / 0.1, "Adam": _RATE}[name]
    for parameter in parameters:
        values = parameter.detach().numpy()
        if not np.allclose(values, 1 - step, rtol=1e-5):
            raise WrongResult(f"{name} {options} does not make the step that its formula says")
