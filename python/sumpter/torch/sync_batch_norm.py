"""Batch normalization over the batches of all ranks."""

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from sumpter._core import membership
from sumpter._core.reduction import Sum
from sumpter.torch.collectives.allreduces import allreduce


class SyncBatchNorm(_BatchNorm):
    """Normalizes each channel by the mean and the variance over the whole batch of all ranks.

    Input has shape (N, C, ...), any number of dimensions from 2 up, and any N on each rank. In
    evaluation, or with one rank, it is torch's batch normalization. Gradients are those of the sum
    of all ranks' losses. Ioffe and Szegedy, "Batch normalization", 2015, Algorithm 1.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected an input of 2 dimensions or more, not {input.dim()}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        training = self.training or self.running_mean is None
        if not training or membership.current().world_size == 1:
            return super().forward(input)
        values = input if input.dtype == torch.float64 else input.float()
        over = [dim for dim in range(values.dim()) if dim != 1]
        count = values.new_full((1,), values.numel() / values.shape[1])
        # The mean first: sums of squares would cancel where it is large.
        totals = _total(torch.cat([values.sum(over), count]))
        count = totals[-1].detach()
        mean = totals[:-1] / count
        shape = [1, -1] + [1] * (values.dim() - 2)
        deviations = values - mean.view(shape)
        variance = _total(deviations.square().sum(over)) / count
        if self.training and self.track_running_stats:
            self._track(mean.detach(), variance.detach(), count)
        normal = deviations * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(input.dtype)

    def _track(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        """Updates the running statistics as torch does, with the unbiased variance."""
        self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:
            momentum = 1.0 / float(self.num_batches_tracked)
        unbiased = variance * (count / (count - 1).clamp(min=1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


def _total(local: torch.Tensor) -> torch.Tensor:
    """The sum over all ranks, through which gradients flow."""
    return allreduce(local, op=Sum)
