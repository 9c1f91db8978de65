"""Every public name of Horovod's and BytePS' MXNet interfaces, and what their callables take."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path

import numpy as np
import pytest

if importlib.util.find_spec("mxnet") is None:
    pytest.skip(
        "mxnet is not installed: `make mxnet-check` has an environment for it",
        allow_module_level=True,
    )

import sumpter.mxnet as sm
from sumpter.mxnet import version

HOROVOD = """init shutdown is_initialized start_timeline stop_timeline
    size local_size cross_size rank local_rank cross_rank
    mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built
    ccl_built cuda_built rocm_built
    ProcessSet global_process_set add_process_set remove_process_set
    Average Sum Adasum Min Max Product Compression
    allreduce allreduce_ grouped_allreduce grouped_allreduce_ allgather grouped_allgather
    broadcast broadcast_ alltoall reducescatter grouped_reducescatter
    broadcast_object allgather_object broadcast_parameters DistributedOptimizer
    DistributedTrainer"""
BYTEPS = """init shutdown suspend resume size local_size rank local_rank
    byteps_push_pull byteps_declare_tensor Compression broadcast_parameters
    DistributedOptimizer DistributedTrainer"""

# What the originals' callables take, in their order; more may follow.
HOROVOD_TAKES = {
    "allreduce": "tensor average name priority prescale_factor postscale_factor process_set",
    "allreduce_": "tensor average name priority prescale_factor postscale_factor process_set",
    "grouped_allreduce": "tensors average name priority prescale_factor postscale_factor"
    " process_set",
    "grouped_allreduce_": "tensors average name priority prescale_factor postscale_factor"
    " process_set",
    "allgather": "tensor name priority process_set",
    "grouped_allgather": "tensors name priority process_set",
    "broadcast": "tensor root_rank name priority process_set",
    "broadcast_": "tensor root_rank name priority process_set",
    "alltoall": "tensor splits name priority process_set",
    "reducescatter": "tensor op name priority process_set prescale_factor postscale_factor",
    "grouped_reducescatter": "tensors op name priority process_set prescale_factor"
    " postscale_factor",
    "broadcast_object": "obj root_rank name",
    "allgather_object": "obj name",
    "broadcast_parameters": "params root_rank prefix",
    "DistributedOptimizer": "optimizer gradient_predivide_factor num_groups",
    "DistributedTrainer": "params optimizer optimizer_params compression"
    " gradient_predivide_factor prefix num_groups",
}
BYTEPS_TAKES = {
    "byteps_push_pull": "tensor version priority name is_average",
    "byteps_declare_tensor": "name",
    "broadcast_parameters": "params root_rank",
    "DistributedOptimizer": "optimizer",
    "resume": "num_workers num_servers global_rank context",
}

# What there is none of; the page says why, and what to do instead.
MISSING = ("reduce", "is_homogeneous")
PAGE = Path(__file__).resolve().parents[3] / "docs" / "user" / "mxnet.md"


@pytest.mark.parametrize("names", [HOROVOD, BYTEPS])
def test_every_name_is_there(names: str) -> None:
    missing = [name for name in names.split() if not hasattr(sm, name)]
    assert not missing, f"sumpter.mxnet lacks {missing}"


@pytest.mark.parametrize("table", [HOROVOD_TAKES, BYTEPS_TAKES])
def test_arguments_are_those_of_the_original(table: dict[str, str]) -> None:
    for name, arguments in table.items():
        own = list(inspect.signature(getattr(sm, name)).parameters)
        listed = arguments.split()
        assert own[: len(listed)] == listed, f"{name} takes {own}, not {listed}"


def test_byteps_keyword_arguments_are_taken() -> None:
    own = inspect.signature(sm.DistributedTrainer).parameters
    assert {"root_rank", "compression_params"} <= set(own)


def test_what_is_missing_is_missing_and_the_page_says_why() -> None:
    there = [name for name in MISSING if hasattr(sm, name)]
    assert not there, f"these are there now: {there}"
    _, _, section = PAGE.read_text().partition("## What is not there\n")
    points = section.partition("\n## ")[0].split("\n- ")
    silent = [name for name in MISSING if not any(p.startswith(f"`{name}`") for p in points)]
    assert not silent, f"{PAGE.name} gives no reason for {silent}"


def test_public_names_are_those_of_the_list() -> None:
    assert sorted(sm.__all__) == sm.__all__
    assert all(hasattr(sm, name) for name in sm.__all__)


def test_a_numpy_that_mxnet_cannot_use_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    version.check()
    monkeypatch.setattr(np, "__version__", "1.26.4")
    with pytest.raises(
        ImportError, match=r"below 1\.24, and 1\.26\.4 is installed.*sumpter\[mxnet\]"
    ):
        version.check()
