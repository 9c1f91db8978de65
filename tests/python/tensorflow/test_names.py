"""Every public name of Horovod's and of BytePS' TensorFlow and Keras interfaces."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import needs

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip(
        "tensorflow is not installed: `make tensorflow-check` has an environment for it",
        allow_module_level=True,
    )
if not needs.is_asked_for("tensorflow"):
    pytest.skip(needs.APART, allow_module_level=True)

import sumpter.keras as sk
import sumpter.tensorflow as st
import sumpter.tensorflow.keras as stk

RANKS = "init shutdown is_initialized start_timeline stop_timeline"
RANKS += " size local_size cross_size rank local_rank cross_rank"
SETS = "ProcessSet global_process_set add_process_set remove_process_set"
OPS = "Average Sum Adasum Min Max Product Compression"
BUILDS = """mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built
    ddl_built ccl_built cuda_built rocm_built"""
HOROVOD = f"""{RANKS} {SETS} {OPS} {BUILDS} rank_op local_rank_op size_op local_size_op
    allreduce grouped_allreduce allgather grouped_allgather reducescatter grouped_reducescatter
    alltoall join broadcast_global_variables process_set_included_op SyncBatchNormalization
    PartialDistributedOptimizer PartialDistributedGradientTape
    broadcast broadcast_ allgather_object broadcast_object broadcast_object_fn broadcast_variables
    DistributedOptimizer DistributedGradientTape elastic"""
BYTEPS = """init shutdown size local_size rank local_rank push_pull broadcast broadcast_variables
    suspend resume get_pushpull_speed broadcast_global_variables BroadcastGlobalVariablesHook
    DistributedOptimizer DistributedGradientTape"""
KERAS = f"""{RANKS} {SETS} {OPS} {BUILDS} allreduce allgather broadcast reducescatter
    DistributedOptimizer PartialDistributedOptimizer broadcast_global_variables load_model callbacks
    elastic"""
BYTEPS_KERAS = """init shutdown size local_size rank local_rank Compression push_pull broadcast
    broadcast_global_variables load_model DistributedOptimizer callbacks"""
CALLBACKS = """BroadcastGlobalVariablesCallback MetricAverageCallback LearningRateScheduleCallback
    LearningRateWarmupCallback BestModelCheckpoint"""
ELASTIC = "State ObjectState HostsUpdatedInterrupt run"
TENSORFLOW_ELASTIC = f"{ELASTIC} TensorFlowState TensorFlowKerasState"
KERAS_ELASTIC = f"""{ELASTIC} KerasState CommitStateCallback UpdateBatchStateCallback
    UpdateEpochStateCallback"""

# What there is none of; docs/user/compatibility.md says why.
MISSING = ("is_homogeneous", "MirroredStrategy", "gpu_available", "mpi_ops", "data")
PAGE = Path(__file__).resolve().parents[3] / "docs" / "user" / "compatibility.md"


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (st, HOROVOD),
        (st, BYTEPS),
        (sk, KERAS),
        (sk, BYTEPS_KERAS),
        # The paths that horovod.tensorflow.keras and byteps.tensorflow.keras have.
        (stk, KERAS),
        (stk, BYTEPS_KERAS),
        (stk.callbacks, CALLBACKS),
        (stk.elastic, KERAS_ELASTIC),
        (sk.callbacks, CALLBACKS),
        (st.elastic, TENSORFLOW_ELASTIC),
        (sk.elastic, KERAS_ELASTIC),
    ],
)
def test_every_name_is_there(module: object, names: str) -> None:
    missing = [name for name in names.split() if not hasattr(module, name)]
    assert not missing, f"{module.__name__} lacks {missing}"


def test_what_is_missing_is_missing_for_a_reason() -> None:
    there = [name for name in MISSING if hasattr(st, name) or hasattr(sk, name)]
    assert not there, f"these are there now: {there}"
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    silent = [name for name in MISSING if not any(f"`{name}`" in row for row in rows)]
    assert not silent, f"{PAGE.name} gives no reason for {silent}"


def test_public_names_are_those_of_the_list() -> None:
    for module in (st, sk, st.elastic, sk.elastic):
        assert sorted(module.__all__) == module.__all__
        assert all(hasattr(module, name) for name in module.__all__)
