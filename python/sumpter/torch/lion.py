"""Lion, which torch.optim does not have: the sign of an average decides each step."""

from collections.abc import Callable, Iterable
from typing import Any

import torch


class Lion(torch.optim.Optimizer):
    """Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, algorithm 2).

    With gradient g, average m (zeros at first) and value w, a step is

        w = w - lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * w)
        m = beta2 * m + (1 - beta2) * g

    The weight decay is decoupled, so it is multiplied by `lr`. The paper advises a learning rate 3
    to 10 times smaller than AdamW's, and a weight decay as many times larger. `maximize` negates
    gradients. The state of a parameter is "exp_avg", m, of the parameter's shape and element type.

    It trains in the workers, and on the servers with `DistributedOptimizer(on_servers=True)`, by
    the same arithmetic. Raises ValueError for hyper-parameters out of their range, RuntimeError
    for sparse gradients.
    """

    # For overlap_forward.
    updates_parameters_independently = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | torch.Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        if not lr >= 0.0:
            raise ValueError(f"lr is {lr}: it must be 0 or more")
        if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
            raise ValueError(f"betas is {betas}: it must be two numbers from 0 to below 1")
        if not weight_decay >= 0.0:
            raise ValueError(f"weight_decay is {weight_decay}: it must be 0 or more")
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes a step; `closure` computes the loss again, and its result is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        gradient = parameter.grad
        if gradient.layout != torch.strided:
            raise RuntimeError("Lion does not support sparse gradients")
        state = self.state[parameter]
        if "exp_avg" not in state:
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        average, lr, (beta1, beta2) = state["exp_avg"], float(group["lr"]), group["betas"]
        if group["maximize"]:
            gradient = -gradient
        if group["weight_decay"] != 0.0:
            parameter.mul_(1.0 - lr * group["weight_decay"])
        direction = average.mul(beta1).add_(gradient, alpha=1.0 - beta1).sign_()
        parameter.add_(direction, alpha=-lr)
        average.mul_(beta2).add_(gradient, alpha=1.0 - beta2)
