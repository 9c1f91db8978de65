"""How tensors of a device travel, in one process, with a device and a core that tests move on.

Those of variables are in test_staging_variables.py.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fake_device
import sumpter.torch as hvd
from fake_core import HANG_S, Core, numbers, start, start_update
from fake_device import FakeDevice, on_fake, plain
from sumpter._core import membership, staging
from sumpter._errors import ClosedError, DeadlineError, PeerLostError
from sumpter.torch import devices


def test_a_tensor_is_one_round_that_is_supplied_slice_by_slice(
    device: FakeDevice, core: Core
) -> None:
    tensor = on_fake(numbers(40).view(5, 8))
    handle = start(core, tensor, tensor)
    (round_,) = core.rounds
    assert (round_.tensor.name, round_.tensor.shape) == ("x", (5, 8))
    assert round_.tensor.kind == ("all_reduce", "uint8", "max")
    assert (round_.submitted["tag"], round_.submitted["priority"]) == ("tag", 3)
    slices = core.wait_for(3)
    assert [part.index for part in slices] == [0, 1, 2]
    assert b"".join(part.sent for part in slices) == bytes(range(40))
    assert not handle.poll()
    # In any order.
    for index in (2, 0, 1):
        slices[index].end(result=index + 1)
    handle.wait()
    assert tensor.cpu().view(-1).tolist() == [1] * 16 + [2] * 16 + [3] * 8
    assert (device.copied_to_host, sorted(device.copied_to_device)) == ([16, 16, 8], [8, 16, 16])


def test_a_slice_is_sent_when_it_has_been_computed_and_copied(
    device: FakeDevice, core: Core
) -> None:
    tensor = on_fake(torch.zeros(32, dtype=torch.uint8))
    with device.device_to_host.held(), device.main.held():
        device.launch(lambda: plain(tensor).fill_(7))
        # The caller is not held up by either.
        start(core, tensor, tensor)
        assert len(core.rounds) == 1 and not core.slices
    first, second = core.wait_for(2)
    assert first.sent == second.sent == bytes([7] * 16)


def test_copies_and_rounds_of_slices_overlap(device: FakeDevice, core: Core) -> None:
    tensor = on_fake(numbers(48))
    original, outgoing = device.copy_to_host, itertools.count()

    def copy(*arguments: Any) -> None:
        if next(outgoing) == 1:
            holds.enter_context(device.device_to_host.held())
        original(*arguments)

    with contextlib.ExitStack() as holds:
        device.copy_to_host = copy  # type: ignore[method-assign]
        handle = start(core, tensor, tensor)
        (first,) = core.wait_for(1)
        # The first is done and on its way back before the second has been copied out.
        first.end(result=9)
        assert_soon(lambda: device.copied_to_device == [16])
        assert len(core.slices) == 1 and not handle.poll()
    for native in core.wait_for(3)[1:]:
        native.end(result=9)
    handle.wait()
    assert tensor.cpu().tolist() == [9] * 48


def test_waiting_orders_the_stream_and_not_the_host(device: FakeDevice, core: Core) -> None:
    tensor = on_fake(torch.zeros(16, dtype=torch.uint8))
    seen: list[int] = []
    handle = start(core, tensor, tensor)
    (native,) = core.wait_for(1)
    with device.host_to_device.held():
        native.end(result=5)
        handle.wait()
        device.launch(lambda: seen.extend(plain(tensor).tolist()))
        assert not device.copied_to_device and not seen
    device.main.mark().synchronize()
    assert seen == [5] * 16


def test_every_stream_that_waits_is_ordered(device: FakeDevice, core: Core) -> None:
    tensor, side = on_fake(torch.zeros(16, dtype=torch.uint8)), fake_device.Stream()
    with device.using(side):
        with side.held():
            device.launch(lambda: plain(tensor).fill_(3))
            handle = start(core, tensor, tensor)
        (native,) = core.wait_for(1)
        assert native.sent == bytes([3] * 16)
    with device.host_to_device.held():
        native.end(result=4)
        handle.wait()
        waiting = device.main.mark()
        assert not waiting._happened.is_set()
    waiting.synchronize()
    assert plain(tensor).tolist() == [4] * 16


def test_what_is_received_comes_after_what_used_the_memory(device: FakeDevice, core: Core) -> None:
    tensor = on_fake(torch.zeros(16, dtype=torch.uint8))
    with device.main.held():
        device.launch(lambda: plain(tensor).fill_(3))
        handle = start(core, None, tensor, "broadcast")
        (native,) = core.wait_for(1)
        assert native.round.submitted["send"] == 0
        native.end(result=8)
        handle.wait()
        assert not device.copied_to_device
    assert tensor.cpu().tolist() == [8] * 16
    assert not device.copied_to_host


def test_only_what_changes_is_copied_to_device(device: FakeDevice, core: Core) -> None:
    tensor = on_fake(numbers(16))
    for kind, receive in (("broadcast", tensor), ("reduce", None)):
        handle = start(core, tensor, receive, kind)
        core.wait_for(1).pop().end(result=1)
        handle.wait()
    assert device.copied_to_host == [16, 16]
    assert not device.copied_to_device and tensor.cpu().tolist() == list(range(16))


def test_many_operations_keep_their_memory_apart(device: FakeDevice, core: Core) -> None:
    tensors = [on_fake(torch.full((40,), index, dtype=torch.uint8)) for index in range(50)]
    begun = [start(core, tensor, tensor) for tensor in tensors]
    rounds = core.wait_for(150)
    assert [native.sent[0] for native in rounds] == [i // 3 for i in range(150)]
    assert len({part.memory.data_ptr() for part in rounds}) == 150
    for index, native in reversed(list(enumerate(rounds))):
        native.end(result=100 + index // 3)
    for index, (handle, tensor) in enumerate(zip(begun, tensors, strict=True)):
        handle.wait()
        assert tensor.cpu().tolist() == [100 + index] * 40


def test_nothing_is_kept_of_what_is_done(device: FakeDevice, core: Core) -> None:
    tensor = on_fake(numbers(40))
    handle = start(core, tensor, tensor)
    memory = weakref.ref(core.rounds[0].keep)
    for part in core.wait_for(3):
        part.end()
    handle.wait()
    core.rounds.clear()
    core.slices.clear()
    del part
    device.host_to_device.mark().synchronize()

    def gone() -> bool:
        gc.collect()
        return memory() is None

    assert_soon(gone)


def test_an_error_of_the_core_is_raised_by_every_wait(device: FakeDevice, core: Core) -> None:
    tensor = on_fake(numbers(40))
    handle, called = start(core, tensor, tensor), threading.Event()
    handle.on_done(called.set)
    rounds = core.wait_for(3)
    rounds[1].end(PeerLostError("rank 1 died"))
    assert called.wait(HANG_S)
    for _ in range(2):
        with pytest.raises(PeerLostError, match="rank 1 died"):
            handle.wait()
    rounds[0].end(result=1)
    rounds[2].end(result=1)
    # What comes after the error is not written, and the threads go on.
    again = start(core, tensor, tensor)
    for native in core.wait_for(6)[3:]:
        native.end()
    again.wait()
    assert tensor.cpu().tolist() == list(range(40))


def test_an_error_while_submitting_is_raised_by_wait(device: FakeDevice, core: Core) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ClosedError("the session is closed")

    core.start = refuse  # type: ignore[method-assign]
    tensor = on_fake(numbers(40))
    with pytest.raises(ClosedError, match="the session is closed"):
        start(core, tensor, tensor).wait(HANG_S)


def test_a_device_that_fails_is_an_error_of_the_tensor_on_all_ranks(
    device: FakeDevice, core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(stream: fake_device.Stream, point: object) -> Any:
        class Failed:
            passed = stream.mark()

            def synchronize(self) -> None:
                raise RuntimeError("an illegal address")

        return Failed()

    monkeypatch.setattr(device, "arrival", fail)
    handle = start(core, on_fake(numbers(16)), None, "reduce")
    with pytest.raises(RuntimeError, match="an illegal address"):
        handle.wait(HANG_S)
    (reason,) = core.refused
    assert reason == "rank 1 cannot read its device's memory: an illegal address"


def test_waiting_has_a_limit(device: FakeDevice, core: Core) -> None:
    handle = start(core, on_fake(numbers(16)), None, "reduce")
    with pytest.raises(DeadlineError, match="not done within 0.01 s"):
        handle.wait(0.01)
    core.wait_for(1)[0].end()
    handle.wait(HANG_S)
    called: list[bool] = []
    handle.on_done(lambda: called.append(True))
    assert called


def test_a_callback_that_fails_does_not_affect_others(
    device: FakeDevice, core: Core, caplog: pytest.LogCaptureFixture
) -> None:
    handle, called = start(core, on_fake(numbers(16)), None, "reduce"), threading.Event()
    handle.on_done(lambda: 1 / 0)
    handle.on_done(called.set)
    core.wait_for(1)[0].end()
    assert called.wait(HANG_S)
    handle.wait()
    assert "ZeroDivisionError" in caplog.text


def test_a_stream_waits_for_the_network_and_the_host_for_nothing(
    device: FakeDevice, core: Core
) -> None:
    tensor = on_fake(torch.zeros(40, dtype=torch.uint8))
    seen: list[int] = []
    handle = start(core, tensor, tensor)
    rounds = core.wait_for(3)
    handle.wait_on_stream()
    device.launch(lambda: seen.extend(plain(tensor).tolist()))
    for native, result in zip(rounds, (5, 6, 7), strict=True):
        assert not seen and not handle.poll()
        native.end(result=result)
    assert handle.poll()
    device.main.mark().synchronize()
    assert seen == [5] * 16 + [6] * 16 + [7] * 8
    # Those who wait later, and in whatever way.
    handle.wait()
    handle.wait_on_stream()
    core.raise_late()


def test_gates_open_while_a_call_of_the_driver_is_stuck(device: FakeDevice, core: Core) -> None:
    """As when the device's memory is freed, which waits for all streams."""
    tensor, seen = on_fake(torch.zeros(40, dtype=torch.uint8)), threading.Event()
    with device.main.held():
        # So that even the copies out come after the call.
        handle = start(core, tensor, tensor)
        handle.wait_on_stream()
        device.launch(seen.set)
        stuck = contextlib.ExitStack()
        stuck.enter_context(device.stuck())
    with stuck:
        for native in core.wait_for(3):
            native.end(result=5)
        assert seen.wait(HANG_S)
    assert tensor.cpu().tolist() == [5] * 40


def test_some_slices_may_be_over_when_a_stream_begins_to_wait(
    device: FakeDevice, core: Core
) -> None:
    for over in itertools.product((False, True), repeat=3):
        tensor = on_fake(torch.zeros(40, dtype=torch.uint8))
        handle = start(core, tensor, tensor)
        rounds = core.wait_for(3)
        for native, already in zip(rounds, over, strict=True):
            if already:
                native.end(result=3)
        handle.wait_on_stream()
        for native, already in zip(rounds, over, strict=True):
            if not already:
                native.end(result=3)
        assert tensor.cpu().tolist() == [3] * 40
        handle.wait(HANG_S)
        core.slices.clear()


def test_streams_of_all_threads_may_wait_while_slices_end(device: FakeDevice, core: Core) -> None:
    for turn in range(60):
        tensor = on_fake(torch.zeros(40, dtype=torch.uint8))
        handle = start(core, tensor, tensor)
        rounds = core.wait_for(3)
        streams = [fake_device.Stream() for _ in range(2)]
        seen: list[list[int]] = []

        def wait_in(
            stream: fake_device.Stream,
            handle: Any = handle,
            tensor: torch.Tensor = tensor,
            seen: list[list[int]] = seen,
        ) -> None:
            with device.using(stream):
                handle.wait_on_stream()
                device.launch(lambda: seen.append(plain(tensor).tolist()))
                device.current().mark().synchronize()

        threads = [threading.Thread(target=wait_in, args=(stream,)) for stream in streams]
        threads += [
            threading.Thread(target=native.end, kwargs={"result": turn}) for native in rounds
        ]
        for thread in sorted(threads, key=lambda thread: hash((thread.name, turn))):
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
        assert seen == [[turn] * 40] * 2
        core.slices.clear()


def test_what_is_sent_does_not_change_before_it_is_copied(device: FakeDevice, core: Core) -> None:
    tensor = on_fake(numbers(16))
    with device.device_to_host.held():
        handle = start(core, tensor, None, "reduce")
        handle.wait_on_stream()
        device.launch(lambda: plain(tensor).zero_())
    (native,) = core.wait_for(1)
    assert native.sent == bytes(range(16))
    device.main.mark().synchronize()
    assert not device.copied_to_device and not plain(tensor).any()


def test_what_fails_while_a_stream_waits_is_no_number_and_raised_next(
    device: FakeDevice, core: Core
) -> None:
    tensor = on_fake(torch.arange(10, dtype=torch.float32))
    send = tensor.view(torch.uint8)
    handle = start(core, send, send)
    rounds = core.wait_for(3)
    handle.wait_on_stream()
    rounds[0].end()
    rounds[1].end(PeerLostError("rank 1 died"))
    assert isinstance(core.late, PeerLostError)
    device.main.mark().synchronize()
    expected = torch.arange(10, dtype=torch.float32)
    expected[4:] = torch.nan
    assert torch.equal(plain(tensor).isnan(), expected.isnan())
    assert torch.equal(plain(tensor)[:4], expected[:4])
    with pytest.raises(PeerLostError, match="rank 1 died"):
        core.raise_late()
    core.raise_late()
    for wait in (handle.wait, handle.wait_on_stream):
        with pytest.raises(PeerLostError, match="rank 1 died"):
            wait()


def test_an_error_is_raised_once_or_by_those_who_ask(device: FakeDevice, core: Core) -> None:
    tensor = on_fake(numbers(16))
    handle = start(core, tensor, tensor)
    core.wait_for(1)
    handle.wait_on_stream()
    core.slices[0].end(PeerLostError("rank 1 died"))
    with pytest.raises(PeerLostError):
        handle.wait()
    core.raise_late()
    again = start(core, tensor, tensor)
    core.wait_for(2)[1].end(PeerLostError("rank 2 died"))
    with pytest.raises(PeerLostError, match="rank 2"):
        again.wait_on_stream()
    core.raise_late()


def test_settling_waits_for_what_streams_wait_for(device: FakeDevice, core: Core) -> None:
    staging.settle(core)
    tensor = on_fake(numbers(16))
    for error in (None, PeerLostError("rank 1 died")):
        handle = start(core, tensor, tensor)
        native = core.wait_for(1).pop()
        handle.wait_on_stream()
        soon = threading.Timer(0.05, native.end, (error,))
        soon.start()
        with pytest.raises(PeerLostError) if error else contextlib.nullcontext():
            staging.settle(core)
        assert handle.poll()
        soon.join()


@pytest.mark.parametrize("variables", [False, True])
def test_the_host_is_not_too_far_ahead(
    device: FakeDevice, core: Core, monkeypatch: pytest.MonkeyPatch, variables: bool
) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # Of those of variables, which have memory for two tensors, as many bytes are half as many.
    monkeypatch.setattr(staging, "PINNED_SHARE", 2 * (200 if variables else 100) / memory)
    tensors = [on_fake(numbers(40)) for _ in range(4)]
    begun = [
        start_update(core, on_fake(numbers(40)), tensor) if variables else
        start(core, tensor, tensor) for tensor in tensors
    ]  # fmt: skip
    rounds = core.wait_for(12)
    gone_on: list[int] = []

    def go() -> None:
        for index, handle in enumerate(begun):
            handle.wait_on_stream()
            gone_on.append(index)

    thread = threading.Thread(target=go)
    thread.start()
    for count in (2, 3):
        assert_soon(lambda count=count: len(gone_on) == count)
        thread.join(0.05)
        assert len(gone_on) == count
        for native in rounds[3 * count - 6 : 3 * count - 3]:
            native.end(result=1)
    for native in rounds[6:]:
        native.end(result=1)
    thread.join(HANG_S)
    assert gone_on == [0, 1, 2, 3]
    assert [tensor.cpu().tolist() for tensor in tensors] == [[1] * 40] * 4


def test_giving_up_ends_everything(device: FakeDevice, core: Core) -> None:
    tensor, other = on_fake(numbers(16)), on_fake(numbers(16))
    handle, more = start(core, tensor, tensor), start(core, other, other)
    core.wait_for(2)
    handle.wait_on_stream()
    more.wait_on_stream()
    handle.abort(DeadlineError("not complete after 3 s"))
    device.main.mark().synchronize()
    with pytest.raises(DeadlineError, match="3 s"):
        core.raise_late()
    with pytest.raises(ClosedError):
        more.wait()


def test_closing_does_not_wait_for_what_needs_a_sum_that_never_comes(
    device: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "SEND_LAST_S", 0.01)
    core, tensor = Core(), on_fake(numbers(16))
    first = start(core, tensor, tensor)
    core.wait_for(1)
    first.wait_on_stream()
    second = start(core, tensor, tensor)
    core.close()
    first.wait(HANG_S)
    with pytest.raises(ClosedError):
        second.wait(HANG_S)


def test_closing_finishes_what_was_begun_and_ends_the_threads(device: FakeDevice) -> None:
    core, tensor = Core(), on_fake(numbers(16))
    before = set(threading.enumerate())
    with device.device_to_host.held():
        handle = start(core, tensor, tensor)
        closing = threading.Thread(target=core.close)
        closing.start()
        assert len(own_threads()) >= 2 and not core.slices
    closing.join(HANG_S)
    handle.wait(HANG_S)
    assert tensor.cpu().tolist() == list(range(16))
    assert len(core.rounds) == 1 and device.copied_to_device == [16]
    assert set(threading.enumerate()) <= before
    with pytest.raises(ClosedError):
        start(core, tensor, tensor)


@pytest.mark.usefixtures("alone")
class TestAlone:
    def test_operations_of_a_job_of_one(self, device: FakeDevice) -> None:
        tensor = on_fake(torch.arange(100.0))
        same = hvd.allreduce(tensor)
        assert isinstance(same, fake_device.OnFake)
        assert torch.equal(same.cpu(), torch.arange(100.0))
        assert hvd.allgather(tensor.view(50, 2)).cpu().shape == (50, 2)
        handle = hvd.allreduce_async_(tensor, name="x")
        assert handle.synchronize() is tensor

    def test_devices_without_streams_are_refused(self) -> None:
        with pytest.raises(hvd.UnsupportedError, match="on device meta"):
            hvd.allreduce(torch.empty(3, device="meta"))


def test_a_session_leaves_no_thread(unlaunched: pytest.MonkeyPatch, device: FakeDevice) -> None:
    before = own_threads()
    for _ in range(3):
        hvd.init()
        assert staged_sum(device) == list(range(40))
        assert own_threads() > before
        hvd.shutdown()
        assert own_threads() == before


def test_a_forked_child_begins_anew(unlaunched: pytest.MonkeyPatch, device: FakeDevice) -> None:
    hvd.init()
    staged_sum(device)
    child = os.fork()
    if child == 0:
        status = 1
        with contextlib.suppress(BaseException):
            # The device's threads are not here either.
            fake_device.install()
            hvd.init()
            result = staged_sum(fake_device.device())
            hvd.shutdown()
            status = 0 if result == list(range(40)) else 2
        os._exit(status)
    _, ended = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(ended) == 0
    assert staged_sum(device) == list(range(40))
    hvd.shutdown()


def staged_sum(device: FakeDevice) -> list[int]:
    """What the core makes of numbers on the device, in a round of this job's one rank."""
    tensor = on_fake(numbers(40))
    declared = membership.current().declare("x", "all_reduce", tensor.shape, "uint8")
    memory = devices.memory_of(tensor)
    staging.stage(declared, device, memory, memory).wait(HANG_S)
    return tensor.cpu().tolist()


def own_threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("sumpter-copies")}


def assert_soon(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(HANG_S / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen")
