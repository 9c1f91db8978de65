"""How gradients and values of variables travel from and to a device."""

from __future__ import annotations

import pytest
import torch

from fake_core import HANG_S, Core, numbers, start, start_update
from fake_device import FakeDevice, on_fake, plain
from sumpter._errors import DeadlineError, PeerLostError
from sumpter.torch import devices, tensors


def test_a_variable_has_its_gradient_sent_and_its_value_received(
    device: FakeDevice, core: Core
) -> None:
    gradient, value = on_fake(numbers(40)), on_fake(torch.zeros(40, dtype=torch.uint8))
    handle = start_update(core, gradient, value)
    (round_,) = core.rounds
    assert (round_.submitted["update"], round_.submitted["order"]) == ([1.0], [(0, 40, 1, 2)])
    assert round_.submitted["send"] != round_.submitted["receive"]
    slices = core.wait_for(3)
    for part in slices:
        part.end(result=part.index + 1)
        # As after a failover, when all of it is needed again.
        assert round_.sent.tolist() == list(range(40))
    handle.wait()
    assert value.cpu().tolist() == [1] * 16 + [2] * 16 + [3] * 8
    assert gradient.cpu().tolist() == list(range(40))


def test_a_value_comes_between_what_reads_the_old_one_and_the_new(
    device: FakeDevice, core: Core
) -> None:
    gradient, value = on_fake(numbers(16)), on_fake(torch.zeros(16, dtype=torch.uint8))
    seen: list[list[int]] = []

    def read() -> None:
        device.launch(lambda: seen.append(plain(value).tolist()))

    for waits_on_stream in (False, True):
        with device.main.held():
            read()
            handle = start_update(core, gradient, value)
        (part,) = core.wait_for(1)
        with device.host_to_device.held():
            if waits_on_stream:
                handle.wait_on_stream()
            part.end(result=8)
            handle.wait()
            read()
        device.main.mark().synchronize()
        assert seen == [[0] * 16, [8] * 16]
        core.slices.clear()
        seen.clear()
        plain(value).zero_()


def test_a_value_may_stay_in_host_memory(device: FakeDevice, core: Core) -> None:
    gradient = on_fake(numbers(40))
    value = devices.host_tensor(gradient).zero_()
    handle = start_update(core, gradient, value)
    for part in core.wait_for(3):
        part.end(result=4)
    handle.wait()
    assert value.tolist() == [4] * 40
    assert device.copied_to_host == [16, 16, 8] and not device.copied_to_device
    handle = start_update(core, gradient, value)
    core.wait_for(6)[4].end(PeerLostError("rank 1 died"))
    with pytest.raises(PeerLostError, match="rank 1 died"):
        handle.wait(HANG_S)


def test_a_round_that_is_decided_later_is_staged_as_well(device: FakeDevice, core: Core) -> None:
    gradient, value = on_fake(numbers(40)), on_fake(torch.zeros(40, dtype=torch.uint8))
    declared = core.declare("v", "update", (40,), "uint8", rule="sgd")
    handle, decision = tensors.start_deferred(declared, gradient, value)
    assert decision == "a decision"
    for part in core.wait_for(3):
        part.end(result=6)
    handle.wait()
    assert value.cpu().tolist() == [6] * 40


def test_an_asynchronous_round_is_done_when_its_order_is_known(
    device: FakeDevice, core: Core
) -> None:
    gradient, value = on_fake(numbers(40)), on_fake(torch.zeros(40, dtype=torch.uint8))
    for error in (None, PeerLostError("rank 1 died")):
        handle = start_update(core, gradient, value, staleness=None)
        for part in core.wait_for(3):
            part.end(result=2, last=False)
        with pytest.raises(DeadlineError):
            handle.wait(0.01)
        core.rounds[-1].end(error)
        if error is None:
            handle.wait(HANG_S)
            assert handle.order() == [(0, 40, 4, 7)]
        else:
            with pytest.raises(PeerLostError):
                handle.wait(HANG_S)
        core.slices.clear()
    # A round that is not asynchronous has none.
    handle = start(core, gradient, gradient)
    for part in core.wait_for(3):
        part.end()
    handle.wait()
    assert handle.order() == []
