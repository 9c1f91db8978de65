"""Runs PyTorch's own DistributedTest, which its wheel contains, over the backend.

    pip install expecttest
    torchrun --nproc-per-node 2 tests/matrix/torch_suite.py [--backend gloo] [WORD ...]

Each test makes its process group anew, all in the same processes. WORDs choose tests by a part of
their names. A test for a GPU or for another backend skips itself. KNOWN lists what cannot
pass, with the reason; the exit status is 1 if anything else fails.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import tempfile
import traceback
import unittest
from typing import Any

import torch
import torch.distributed as dist

# What a rank waits for the others, in a test and between tests.
PATIENCE = datetime.timedelta(seconds=60)

# Tests that cannot pass, and why.
_NO_BACKEND = "the test makes a model only for the backends gloo, mpi and nccl"
_GPU = "the test takes a GPU without asking whether there is one"
KNOWN = {
    "test_accumulate_gradients_no_sync": _NO_BACKEND,
    "test_accumulate_gradients_no_sync_allreduce_hook": _NO_BACKEND,
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook": _NO_BACKEND,
    "test_accumulate_gradients_no_sync_grad_is_view": _NO_BACKEND,
    "test_all_to_all_cuda": _GPU,
    "test_all_to_all_cuda_complex": _GPU,
    "test_all_to_all_full_group_cuda": _GPU,
    "test_batch_isend_irecv_mixed_backend_err": _GPU,
    "test_batch_isend_irecv_op_err": _GPU,
    "test_SyncBatchNorm_process_group": "needs torchvision",
    "test_ddp_logging_data_cpu": "DDP logs every backend from outside torch as 'custom'",
    "test_monitored_barrier_gloo_rank_0_timeout": "expects the wording of Gloo's message",
    "test_new_subgroups_with_group_param": "needs four ranks",
}


def load(backend: str) -> type[Any]:
    """Torch's tests for a backend; the module reads the environment when it is imported."""
    os.environ["BACKEND"] = backend
    # It makes models when it is imported, which are to be the same on all ranks.
    torch.manual_seed(0)
    import torch.testing._internal.common_distributed as common

    # Torch asks this table which backends DDP and groups of some ranks work with.
    for feature in ("ddp", "subgroup", "plugin"):
        common.DistTestCases.backend_feature[feature].add(backend)
    from torch.testing._internal.distributed import distributed_test as tests

    class Suite(tests.TestDistBackend, tests.DistributedTest._DistTestBase):
        """Torch's tests, whose names these are."""

        @classmethod
        def use(cls, folder: str) -> None:
            """Has a test's barriers and files in `folder`, which is the same on all ranks."""
            for name in ("barrier", "test_dir", "init_dir"):
                os.makedirs(os.path.join(folder, name), exist_ok=True)
            os.environ["TEMP_DIR"] = folder
            tests.Barrier.barrier_id = 0

    return Suite


def outcome(suite: type[Any], name: str, backend: str, folder: str) -> str:
    """Runs a test on this rank: "passed", "skipped", or what went wrong."""
    suite.use(folder)
    test, path = suite(name), os.path.join(folder, "store")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    test.rank, test.file_name = rank, path
    try:
        dist.init_process_group(
            backend, init_method=f"file://{path}", rank=rank, world_size=size, timeout=PATIENCE
        )
        getattr(test, name)()
        return "passed"
    except (SystemExit, unittest.SkipTest):
        # Torch's tests end their process to skip.
        return "skipped"
    except Exception:
        return traceback.format_exc()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="sumpter")
    parser.add_argument("words", nargs="*", metavar="WORD")
    asked = parser.parse_args()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # torchrun's own store is this port's; the ranks meet between tests in another one there.
    meeting = dist.PrefixStore("torch_suite", next(dist.rendezvous("env://"))[0])
    if rank == 0:
        meeting.set("folder", tempfile.mkdtemp(prefix="torch_suite."))
    folder = meeting.get("folder").decode()
    suite = load(asked.backend)
    names = [name for name in dir(suite) if name.startswith("test_")]
    if asked.words:
        names = [name for name in names if any(word in name for word in asked.words)]
    counts = {"passed": 0, "skipped": 0, "failed": 0, "known": 0}
    for name in names:
        meeting.set(f"{name}.{rank}", outcome(suite, name, asked.backend, f"{folder}/{name}"))
        # Where one rank fails, the others may wait for as long as PATIENCE.
        said = [meeting.get(f"{name}.{other}").decode() for other in range(size)]
        failed = [text for text in said if text not in ("passed", "skipped")]
        verdict = said[0] if not failed else "known" if name in KNOWN else "failed"
        counts[verdict] += 1
        if rank == 0 and verdict != "skipped":
            print(f"{verdict:8}{name}", *([failed[0]] if verdict == "failed" else []), flush=True)
    if rank == 0:
        print(*(f"{count} {verdict}" for verdict, count in counts.items()), sep=", ")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
