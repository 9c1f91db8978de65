"""What of the torch front can be seen in one process."""

from __future__ import annotations

import importlib.metadata

import pytest
import torch

import sumpter.torch as hvd
from sumpter.torch.c10d import backend, registration


@pytest.mark.parametrize("version", ["2.13.1", "1.13.0", "2.9.0+cu128"])
def test_the_backend_refuses_an_old_torch(version: str) -> None:
    with pytest.raises(ImportError, match=rf"2\.14 or newer, not {version}".replace("+", r"\+")):
        registration.check_torch_version(version)


@pytest.mark.parametrize("version", ["2.14.0", "2.15.0+cu132", "2.16.0a0+git12", "3.0.0"])
def test_the_backend_takes_a_new_torch(version: str) -> None:
    registration.check_torch_version(version)


def test_torch_finds_the_backend_by_its_entry_point() -> None:
    points = importlib.metadata.entry_points(group="torch.distributed.backends", name="sumpter")
    assert [point.load() for point in points] == [backend.register]
    backend.register()
    backend.register()


def test_nothing_of_what_horovod_can_be_built_with_is_here() -> None:
    asked = [name for name in hvd.__all__ if name.endswith(("_built", "_enabled", "_supported"))]
    assert len(asked) == 10
    assert not any(getattr(hvd, name)() for name in asked)


def test_half_precision_compression_keeps_what_is_small_or_whole() -> None:
    for dtype in (torch.float32, torch.float64):
        packed, context = hvd.Compression.fp16.compress(torch.ones(3, dtype=dtype))
        assert packed.dtype == torch.float16
        assert hvd.Compression.fp16.decompress(packed, context).dtype == dtype
    for dtype in (torch.float16, torch.bfloat16, torch.int64):
        tensor = torch.ones(3, dtype=dtype)
        packed, context = hvd.Compression.fp16.compress(tensor)
        assert packed is tensor
        assert hvd.Compression.fp16.decompress(packed, context) is tensor


@pytest.mark.usefixtures("alone")
class TestAlone:
    def test_unsupported_tensors_are_refused_by_name(self) -> None:
        for tensor, expected in (
            (torch.ones(2, device="meta"), "meta"),
            (torch.eye(2).to_sparse(), "sparse_coo"),
            (torch.ones(2, dtype=torch.complex64), "complex64"),
            (torch.ones(2, dtype=torch.bool), "op=Max"),
            ([1.0, 2.0], "list"),
        ):
            with pytest.raises(hvd.UnsupportedError, match=expected):
                hvd.allreduce_(tensor)
        assert hvd.allreduce(torch.tensor([True, False]), op=hvd.Max).tolist() == [True, False]

    def test_contradictory_arguments_are_refused(self) -> None:
        with pytest.raises(ValueError, match="not both"):
            hvd.allreduce(torch.ones(2), average=True, op=hvd.Sum)
        with pytest.raises(ValueError, match="gradient_predivide_factor"):
            hvd.DistributedOptimizer(sgd(), gradient_predivide_factor=2.0, op=hvd.Sum)
        with pytest.raises(ValueError, match="backward_passes_per_step"):
            hvd.DistributedOptimizer(sgd(), backward_passes_per_step=0)
        with pytest.raises(ValueError, match="root_rank is 3"):
            hvd.broadcast(torch.ones(2), root_rank=3)
        with pytest.raises(TypeError, match="broadcast_object"):
            hvd.broadcast_parameters({"epoch": 3})
        with pytest.raises(AssertionError, match="needs a name"):
            hvd.push_pull(torch.ones(2))
        for groups in (-1, [1], "all"):
            with pytest.raises(ValueError, match="groups"):
                hvd.DistributedOptimizer(sgd(), groups=groups)

    def test_a_model_leaves_its_old_optimizer_for_a_new_one(self) -> None:
        layer = torch.nn.Linear(2, 1)
        first = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1))
        second = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1))
        layer(torch.ones(1, 2)).sum().backward()
        first.zero_grad()
        with pytest.raises(AssertionError, match="zero_grad"):
            second.zero_grad()
        second.step()

    def test_exchanges_end_with_their_optimizer(self) -> None:
        layer = torch.nn.Linear(2, 1)
        hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1))
        for _ in range(3):
            layer(torch.ones(1, 2)).sum().backward()


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
