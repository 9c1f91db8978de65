"""A Ray cluster of three nodes or more on this machine: the real daemons, on its own address."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NODES = 3
_MEMORY_BYTES = 100 << 20


@pytest.fixture(scope="session")
def nodes() -> Iterator[Any]:
    """A cluster in which each node has one CPU, and this process is its driver.

    A test may add nodes, and takes them away again.
    """
    import ray
    from ray.cluster_utils import Cluster

    # Sockets lie in it, whose paths are short by the system's rules.
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    # Ray also writes a file under TMPDIR, without making a folder for it.
    (Path(tempfile.gettempdir()) / "ray").mkdir(exist_ok=True)
    of_node = {"num_cpus": 1, "object_store_memory": _MEMORY_BYTES}
    made = Cluster(
        initialize_head=True,
        head_node_args={**of_node, "include_dashboard": False, "temp_dir": folder},
    )
    try:
        for _ in range(NODES - 1):
            made.add_node(**of_node)
        ray.init(address=made.address)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster(nodes: Any) -> str:
    """The address of the cluster."""
    return nodes.address
