"""The numbers that benchmarks sum and check."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="payloads are tensors")

from sumpter_lab.scaffold.jobs.payload import PERIOD, Payload  # noqa: E402


def test_a_compressed_sum_has_about_the_mean_of_the_sum() -> None:
    payload, tensor = Payload(0, 1, 4 * PERIOD, "topk:k=0.25"), torch.zeros(4 * PERIOD)
    payload.fill([tensor], 3)
    kept = torch.where(tensor > 765, tensor, 0.0)
    payload.check([kept], 3)
    for wrong in (torch.zeros_like(tensor), -tensor, 9 * tensor, tensor.fill_(float("nan"))):
        with pytest.raises(ArithmeticError, match=r"round 3, tensor 0: the mean is"):
            payload.check([wrong], 3)


@pytest.mark.parametrize("elements", [1, PERIOD, PERIOD + 1, 2**24 + 2 * PERIOD])
def test_a_contribution_alone_is_its_own_sum(elements: int) -> None:
    payload, tensor = Payload(0, 1, elements), torch.empty(elements)
    payload.fill([tensor], 3)
    payload.check([tensor], 3)
    # The result of another round, and a single wrong element, are found.
    with pytest.raises(ArithmeticError, match=r"element 0 of tensor 0"):
        payload.check([tensor], 4)
    tensor[-1] += 1
    with pytest.raises(ArithmeticError, match=rf"element {elements - 1} of tensor 0"):
        payload.check([tensor], 3)
