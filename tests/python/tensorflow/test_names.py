"""Every public name of Horovod's TensorFlow and Keras interfaces, and of BytePS' for TensorFlow."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip(
        "tensorflow is not installed: pip install 'sumpter[tensorflow]'", allow_module_level=True
    )

import sumpter.keras as sk
import sumpter.tensorflow as st

RANKS = "init shutdown is_initialized start_timeline stop_timeline"
RANKS += " size local_size cross_size rank local_rank cross_rank"
SETS = "ProcessSet global_process_set add_process_set remove_process_set"
OPS = "Average Sum Adasum Min Max Product Compression"
HOROVOD = f"""{RANKS} {SETS} {OPS} rank_op local_rank_op size_op local_size_op
    mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built
    ccl_built cuda_built rocm_built
    allreduce grouped_allreduce allgather grouped_allgather reducescatter grouped_reducescatter
    broadcast broadcast_ allgather_object broadcast_object broadcast_object_fn broadcast_variables
    DistributedOptimizer DistributedGradientTape elastic"""
BYTEPS = """init shutdown size local_size rank local_rank push_pull broadcast broadcast_variables
    DistributedOptimizer DistributedGradientTape"""
KERAS = f"""{RANKS} {SETS} {OPS} allreduce allgather broadcast reducescatter DistributedOptimizer
    load_model callbacks elastic"""
CALLBACKS = """BroadcastGlobalVariablesCallback MetricAverageCallback LearningRateScheduleCallback
    LearningRateWarmupCallback"""
ELASTIC = "State ObjectState HostsUpdatedInterrupt run"
TENSORFLOW_ELASTIC = f"{ELASTIC} TensorFlowState TensorFlowKerasState"
KERAS_ELASTIC = f"""{ELASTIC} KerasState CommitStateCallback UpdateBatchStateCallback
    UpdateEpochStateCallback"""

# What there is none of, and what to do instead.
MISSING = {
    "alltoall": "the core has no all-to-all; allgather, and take the own part",
    "join": "give ranks equally many steps; sumpter.torch has it",
    "SyncBatchNormalization": "keras.layers.BatchNormalization(synchronized=True) needs a strategy",
    "PartialDistributedGradientTape": "leave local variables out of what the tape is asked for",
    "PartialDistributedOptimizer": "write the loop with a tape",
    "BestModelCheckpoint": "keras.callbacks.ModelCheckpoint on rank 0",
    "broadcast_global_variables": "of TensorFlow 1's graphs; broadcast_variables",
    "BroadcastGlobalVariablesHook": "of TensorFlow 1's sessions; broadcast_variables",
    "process_set_included_op": "ProcessSet.included()",
    "is_homogeneous": "compare local_size() of all ranks",
    "suspend": "sumpter.torch has it",
    "resume": "sumpter.torch has it",
    "get_pushpull_speed": "sumpter status, sumpter top",
    "MirroredStrategy": "a process for each rank",
}


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (st, HOROVOD),
        (st, BYTEPS),
        (sk, KERAS),
        (sk.callbacks, CALLBACKS),
        (st.elastic, TENSORFLOW_ELASTIC),
        (sk.elastic, KERAS_ELASTIC),
    ],
)
def test_every_name_is_there(module: object, names: str) -> None:
    missing = [name for name in names.split() if not hasattr(module, name)]
    assert not missing, f"{module.__name__} lacks {missing}"


def test_what_is_missing_is_missing() -> None:
    there = [name for name in MISSING if hasattr(st, name) or hasattr(sk, name)]
    assert not there, f"these are there now: {there}"


def test_public_names_are_those_of_the_list() -> None:
    for module in (st, sk, st.elastic, sk.elastic):
        assert sorted(module.__all__) == module.__all__
        assert all(hasattr(module, name) for name in module.__all__)
