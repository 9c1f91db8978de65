"""The numbers that rounds sum, chosen so that every sum is exact and no old result passes.

Element i of rank r in round t is pattern[i] + r + t with small integers, which any order of
adding sums without rounding.
"""

from __future__ import annotations

import torch

# Prime, so that no period coincides with that of chunks or partitions.
PERIOD = 1021
# Rounds repeat after this many; a result is never mistaken for that of the round before.
ROUND_PERIOD = 7
# Small enough to stay in cache while it is compared.
CHECK_ELEMENTS = 256 * 1024
# The mean of a compressed sum may be so many times that of the sum itself.
LOSSY_FACTOR = 4


class Payload:
    """Fills and checks flat f32 tensors of at most `elements` elements, all on one device."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        elements: int,
        compression: str | None = None,
        device: str = "cpu",
    ) -> None:
        self.device = torch.device(device)
        self._rank = rank
        self._world_size = world_size
        self._is_lossy = compression not in (None, "", "none")
        # Not the remainders of indices: a float32 does not hold those above 2**24.
        period = torch.arange(PERIOD, dtype=torch.float32)
        self._pattern = period.repeat(-(-elements // PERIOD))[:elements].to(self.device)

    def fill(self, tensors: list[torch.Tensor], number: int) -> None:
        """Writes this rank's contribution of round `number`."""
        for tensor in tensors:
            flat = tensor.view(-1)
            offset = float(self._rank + number % ROUND_PERIOD)
            torch.add(self._pattern[: flat.numel()], offset, out=flat)

    def check(self, tensors: list[torch.Tensor], number: int, average: bool = False) -> None:
        """Raises unless every element is the exact sum, or average, of all contributions."""
        size = self._world_size
        # Division by a power of two is exact, and DDP divides before it adds.
        exact = not average or size & (size - 1) == 0
        sums = self.sums(number)
        self.check_values(tensors, number, sums / size if average else sums, exact)

    def sums(self, number: int) -> torch.Tensor:
        """The sums of all contributions to the first elements of round `number`; from there on
        they repeat."""
        size = self._world_size
        offset = sum(range(size)) + size * (number % ROUND_PERIOD)
        return torch.arange(PERIOD, dtype=torch.float32) * size + offset

    def check_values(
        self, tensors: list[torch.Tensor], number: int, values: torch.Tensor, exact: bool
    ) -> None:
        """Raises unless the tensors hold these values over and over, or are close to them; of a
        compressed job, unless they are numbers whose mean can be that of the values."""
        block = values.repeat(CHECK_ELEMENTS // PERIOD + 2).to(self.device)
        for index, tensor in enumerate(tensors):
            flat = tensor.view(-1)
            for start in range(0, flat.numel(), CHECK_ELEMENTS):
                got = flat[start : start + CHECK_ELEMENTS]
                expected = block[start % PERIOD :][: got.numel()]
                if self._is_lossy:
                    self._check_mean(got, expected, f"round {number}, tensor {index}")
                    continue
                if not (torch.equal(got, expected) if exact else torch.allclose(got, expected)):
                    wrong = int((got != expected).nonzero()[0])
                    raise ArithmeticError(
                        f"rank {self._rank}, round {number}: element {start + wrong} of tensor "
                        f"{index} is {got[wrong].item()}, not {expected[wrong].item()}"
                    )

    def _check_mean(self, got: torch.Tensor, expected: torch.Tensor, where: str) -> None:
        """Of what a codec leaves out, error feedback adds later: so that single elements, and the
        first rounds, may be far off, and rounds that follow too large."""
        mean, right = got.mean().item(), expected.mean().item()
        if not 0 < mean < LOSSY_FACTOR * right:
            raise ArithmeticError(
                f"rank {self._rank}, {where}: the mean is {mean}, and uncompressed {right}"
            )
