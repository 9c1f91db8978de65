"""What stands for a parameter's gradient while its sum over the ranks is on the servers.

A `ServerGradient` lies in `parameter.grad` between backward() and step(). It has no elements here;
of the sum it knows the 2-norm, it takes factors, and it takes the check of a GradScaler. So
`torch.nn.utils.clip_grad_norm_` and `torch.amp.GradScaler` work on it as on any gradient.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from sumpter._errors import UnsupportedError

aten = torch.ops.aten


class SummedRound(Protocol):
    """Where a stand-in has its norm from."""

    def check(self, gradient: "ServerGradient") -> None:
        """Raises ValueError if the step of a gradient is over."""

    def squares(self, parameter: torch.nn.Parameter) -> float:
        """Waits for the gradient's sum over the ranks: the sum of its squares."""

    def join(self) -> "Sequence[ServerGradient]":
        """Has this rank take part in the rounds that backward did not begin; their gradients."""


class ServerGradient(torch.Tensor):
    """A gradient whose sum is on the servers.

    Its shape, type and device are those of the parameter. `factor` is what the servers are to
    multiply the sum by before they apply the rule.
    """

    factor: float
    _round: SummedRound
    parameter: torch.nn.Parameter
    _name: str

    @staticmethod
    def __new__(
        cls, parameter: torch.nn.Parameter, name: str, round_: SummedRound
    ) -> "ServerGradient":
        """The gradient of this parameter, called `name` in messages."""
        made: ServerGradient = torch.Tensor._make_wrapper_subclass(
            cls, parameter.shape, dtype=parameter.dtype, device=parameter.device
        )
        made.parameter, made._name, made._round = parameter, name, round_
        made.factor = 1.0
        return made

    def __init__(self, *_: object) -> None:
        """Everything was done by __new__()."""

    # Only what reaches torch's operators is looked at.
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Callable[..., Any],
        _types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Does what can be done where the elements are; UnsupportedError for the rest."""
        operation = _OPERATIONS.get(getattr(func, "overloadpacket", func))
        owners = [one for one in _tensors(args) if isinstance(one, ServerGradient)]
        for gradient in owners:
            gradient._round.check(gradient)
        if operation is None:
            raise UnsupportedError(
                f"{func} of the gradient of {owners[0]._name if owners else 'a parameter'}: with "
                "deferred=True its sum is on the servers until step(). There are its 2-norm, "
                "multiplication by a number and a GradScaler's check; set gradients to None with "
                "zero_grad() and call backward() once for each step, or set "
                "backward_passes_per_step"
            )
        return operation(*args, **(kwargs or {}))

    def __repr__(self, **_: object) -> str:
        """Its name and its factor; a norm would have to be waited for."""
        return f"<the gradient of {self._name} on the servers, times {self.factor}>"

    def norm_2(self) -> float:
        """The 2-norm of the sum over the ranks, or of its average, with the factor; waits."""
        return math.sqrt(self._round.squares(self.parameter)) * abs(self.factor)

    @property
    def is_finite(self) -> bool:
        """Whether all elements of the sum over the ranks are finite; waits."""
        return math.isfinite(self._round.squares(self.parameter))


def clip_(
    gradients: Sequence[ServerGradient], max_norm: float, error_if_nonfinite: bool
) -> torch.Tensor:
    """Multiplies gradients by min(1, max_norm / (total norm + 1e-6)).

    Returns the total 2-norm, a tensor without dimensions on the gradients' device. The formula and
    the arithmetic are those of torch.nn.utils.clip_grad_norm_ on the CPU, wherever the parameters
    are: the host knows the norms, so it does not wait for a device, and ranks with different
    devices get the same factor. RuntimeError for a norm that is not finite, if
    `error_if_nonfinite`.
    """
    if not gradients:
        return torch.tensor(0.0)
    norms = [torch.tensor(one.norm_2(), dtype=one.dtype, device="cpu") for one in gradients]
    total = torch.linalg.vector_norm(torch.stack(norms))
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(
            "the total norm of the gradients is non-finite, so it cannot be clipped: pass "
            "error_if_nonfinite=False to have step() skip the step"
        )
    factor = float(torch.clamp(max_norm / (total + 1e-6), max=1.0))
    for one in gradients:
        one.factor *= factor
    return total.to(gradients[0].device, non_blocking=True)


def _tensors(values: Sequence[Any]) -> list[Any]:
    flat: list[Any] = []
    for value in values:
        flat.extend(value if isinstance(value, list | tuple) else [value])
    return flat


def _vector_norm(
    gradient: ServerGradient,
    ord: float = 2.0,  # noqa: A002 - torch's name
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    if ord != 2 or dim is not None or keepdim:
        raise UnsupportedError(
            f"the norm of order {ord} of the gradient of {gradient._name}: its sum is on the "
            "servers, which know the 2-norm of all of it"
        )
    late = gradient._round.join()
    if late:
        names = ", ".join(one._name for one in late[:3])
        raise ValueError(
            f"backward() has not reached {names}, but may have on other ranks: call "
            "clip_grad_norm_() of the optimizer, which takes part in the sum of all gradients"
        )
    norm = torch.tensor(gradient.norm_2(), dtype=dtype or gradient.dtype, device="cpu")
    # Otherwise torch waits for the stream of a device.
    return norm.to(gradient.device, non_blocking=True)


def _foreach_norm(
    gradients: Sequence[ServerGradient],
    ord: float = 2.0,  # noqa: A002 - torch's name
    dtype: torch.dtype | None = None,
) -> list[torch.Tensor]:
    return [_vector_norm(gradient, ord, dtype=dtype) for gradient in gradients]


def _multiply(gradient: ServerGradient, by: Any) -> ServerGradient:
    if isinstance(gradient, ServerGradient) and not isinstance(by, ServerGradient):
        gradient.factor *= _number(gradient, by)
        return gradient
    raise UnsupportedError("a gradient that is on the servers can be multiplied by a number only")


def _divide(gradient: ServerGradient, by: Any) -> ServerGradient:
    return _multiply(gradient, 1.0 / _number(gradient, by))


def _foreach_multiply(gradients: Sequence[ServerGradient], by: Any) -> None:
    factors = by if isinstance(by, list | tuple) else [by] * len(gradients)
    for gradient, factor in zip(gradients, factors, strict=True):
        _multiply(gradient, factor)


def _unscale(
    gradients: Sequence[ServerGradient], found_inf: torch.Tensor, inv_scale: torch.Tensor
) -> None:
    # Those that this rank's backward did not reach are scaled like the others.
    # Once, since of a scale on a device the host has to wait for it.
    inverse = float(inv_scale)
    for gradient in [*gradients, *gradients[0]._round.join()]:
        gradient.factor *= inverse
        if not gradient.is_finite:
            found_inf.fill_(1.0)


def _number(gradient: ServerGradient, by: Any) -> float:
    if isinstance(by, torch.Tensor) and by.numel() != 1:
        raise UnsupportedError(
            f"the gradient of {gradient._name} is on the servers: it can be multiplied by a "
            f"number, not by a tensor of shape {tuple(by.shape)}"
        )
    return float(by)


_OPERATIONS: dict[Any, Callable[..., Any]] = {
    aten.linalg_vector_norm: _vector_norm,
    aten.norm: _vector_norm,
    aten._foreach_norm: _foreach_norm,
    aten.mul_: _multiply,
    aten.div_: _divide,
    aten._foreach_mul_: _foreach_multiply,
    aten._amp_foreach_non_finite_check_and_unscale_: _unscale,
    aten.detach: lambda gradient: gradient,
}
