"""Every name that Horovod and BytePS scripts use is there, and can be called as theirs.

The tables are the originals' signatures: module, name, parameters with their defaults. A parameter
of ours may have a default where theirs has none, and more may follow; names and order are theirs.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator

import pytest
import torch

import sumpter.torch as hvd

WORDS = {
    "Average": hvd.Average,
    "Compression.none": hvd.Compression.none,
    "PS": hvd.global_process_set,
}

TOP = "sumpter.torch"
REDUCE = "op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=PS"
SCALES = "prescale_factor=1.0, postscale_factor=1.0"

HOROVOD = f"""
init(comm=None, process_sets=None)
shutdown()
is_initialized()
start_timeline(file_path, mark_cycles=False)
stop_timeline()
size()
rank()
local_size()
local_rank()
cross_size()
cross_rank()
mpi_threads_supported()
mpi_enabled()
mpi_built()
gloo_enabled()
gloo_built()
nccl_built()
ddl_built()
ccl_built()
cuda_built()
rocm_built()
allreduce(tensor, average=None, name=None, compression=Compression.none, {REDUCE})
allreduce_async(tensor, average=None, name=None, {REDUCE})
allreduce_(tensor, average=None, name=None, {REDUCE})
allreduce_async_(tensor, average=None, name=None, {REDUCE})
grouped_allreduce(tensors, average=None, name=None, compression=Compression.none, {REDUCE})
grouped_allreduce_async(tensors, average=None, name=None, {REDUCE})
grouped_allreduce_(tensors, average=None, name=None, {REDUCE})
grouped_allreduce_async_(tensors, average=None, name=None, {REDUCE})
sparse_allreduce_async(tensor, name, op, process_set=PS)
allgather(tensor, name=None, process_set=PS)
allgather_async(tensor, name=None, process_set=PS)
grouped_allgather(tensors, name=None, process_set=PS)
grouped_allgather_async(tensors, name=None, process_set=PS)
broadcast(tensor, root_rank, name=None, process_set=PS)
broadcast_async(tensor, root_rank, name=None, process_set=PS)
broadcast_(tensor, root_rank, name=None, process_set=PS)
broadcast_async_(tensor, root_rank, name=None, process_set=PS)
alltoall(tensor, splits=None, name=None, process_set=PS)
alltoall_async(tensor, splits=None, name=None, process_set=PS)
reducescatter(tensor, name=None, compression=Compression.none, op=Average, process_set=PS, {SCALES})
reducescatter_async(tensor, name=None, op=Average, process_set=PS, {SCALES})
grouped_reducescatter(tensors, name=None, compression=Compression.none, op=Average, process_set=PS,\
 {SCALES})
grouped_reducescatter_async(tensors, name=None, op=Average, process_set=PS, {SCALES})
join(device=-1)
barrier(process_set=PS)
poll(handle)
synchronize(handle)
ProcessSet(ranks_or_comm)
ProcessSet.size()
ProcessSet.rank()
ProcessSet.included()
add_process_set(process_set)
remove_process_set(process_set)
broadcast_parameters(params, root_rank)
broadcast_optimizer_state(optimizer, root_rank)
broadcast_object(obj, root_rank=0, name=None, process_set=PS)
allgather_object(obj, name=None)
DistributedOptimizer(optimizer, named_parameters=None, compression=Compression.none,\
 backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0, num_groups=0, groups=None,\
 sparse_as_dense=False, process_set=PS)
SyncBatchNorm(num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)
Compression.none.compress(tensor)
Compression.none.decompress(tensor, ctx)
Compression.fp16.compress(tensor)
Compression.fp16.decompress(tensor, ctx)
"""

BYTEPS = """
init(lazy=True)
shutdown()
suspend()
resume(num_workers, num_servers, global_rank, context=None)
size()
local_size()
rank()
local_rank()
push_pull(tensor, average=True, name=None, version=0, priority=0, compression=Compression.none)
byteps_push_pull(tensor, average=True, name=None, version=0, priority=0)
poll(handle)
synchronize(handle)
declare(name)
DistributedOptimizer(optimizer, named_parameters=None, compression=Compression.none,\
 backward_passes_per_step=1)
broadcast_parameters(params, root_rank, prefix='Parameter.')
broadcast_optimizer_state(optimizer, root_rank, prefix='Parameter.')
broadcast_object(obj, root_rank=0, name=None)
get_pushpull_speed()
"""

BYTEPS_OPS = """
push_pull(tensor, average=True, name=None, version=0, priority=0, compression=Compression.none)
push_pull_async(tensor, average=True, name=None, version=0, priority=0)
push_pull_async_inplace(tensor, average=True, name=None, version=0, priority=0)
push_pull_inplace(tensor, average=True, name=None, version=0, priority=0)
push_pull_group_sync_inplace(tensor, average=True, name=None, version=0, priority=0)
byteps_torch_set_num_grads(num_grads)
BytePSPushPull.forward(ctx, tensor, average, name, version, priority)
declare(name)
poll(handle)
synchronize(handle)
init()
shutdown()
suspend()
resume(num_workers, num_servers, global_rank, context=None)
size()
rank()
local_size()
local_rank()
get_pushpull_speed()
"""

PARALLEL = """
DistributedDataParallel(module, device_ids=None, broadcast_buffers=True,\
 compression=Compression.none)
DistributedDataParallel.no_sync()
DistributedDataParallel.synchronize()
"""

CROSS_BARRIER = """
CrossBarrier(model, optimizer, named_parameters=None, compression=Compression.none,\
 backward_passes_per_step=1, num_steps=1000000)
init()
shutdown()
size()
local_size()
rank()
local_rank()
poll(handle)
synchronize(handle)
broadcast_parameters(params, root_rank, prefix="Parameter.")
broadcast_optimizer_state(optimizer, root_rank, prefix="Parameter.")
"""

ELASTIC = """
run(func)
State.commit()
State.check_host_updates()
State.register_reset_callbacks(callbacks)
State.on_reset()
State.save()
State.restore()
State.sync()
State.reset()
ObjectState(bcast_object, get_rank)
TorchState(model=None, optimizer=None)
TorchState.save()
TorchState.restore()
TorchState.sync()
ElasticSampler(dataset, shuffle=True, seed=0)
ElasticSampler.set_epoch(epoch)
ElasticSampler.record_batch(batch_idx, batch_size)
ElasticSampler.record_indices(indices)
ElasticSampler.get_indices(batch_idx, batch_size)
ElasticSampler.state_dict()
ElasticSampler.load_state_dict(state_dict)
ElasticSampler.reset()
"""

COMPRESSION = """
Compressor.compress(tensor)
Compressor.decompress(tensor, ctx)
NoneCompressor.compress(tensor)
FP16Compressor.compress(tensor)
"""

# Where else scripts import what is above from.
IN_MPI_OPS = (
    "init shutdown is_initialized start_timeline stop_timeline size rank local_ cross_ mpi_ gloo_ "
    "nccl_ ddl_ ccl_ cuda_ rocm_ "
    "allreduce grouped_ sparse_ allgather( allgather_async broadcast( broadcast_( broadcast_async "
    "alltoall reducescatter join barrier poll synchronize ProcessSet add_process_set "
    "remove_process_set"
).split()
IN_FUNCTIONS = ("broadcast_parameters", "broadcast_optimizer_state", "broadcast_object")

TABLES = {
    "Horovod": (TOP, HOROVOD),
    "BytePS": (TOP, BYTEPS),
    "ops of BytePS": (f"{TOP}.ops", BYTEPS_OPS),
    "parallel of BytePS": (f"{TOP}.parallel", PARALLEL),
    "cross_barrier of BytePS": (f"{TOP}.cross_barrier", CROSS_BARRIER),
    "elastic of Horovod": (f"{TOP}.elastic", ELASTIC),
    "compression of BytePS": (f"{TOP}.compression", COMPRESSION),
}

# Values and classes, which have no signature.
THINGS = {
    TOP: "Average Sum Adasum Min Max Product HorovodInternalError Compression global_process_set",
    f"{TOP}.mpi_ops": "Average Sum Adasum Min Max Product Compression global_process_set",
    f"{TOP}.compression": "Compression NoneCompressor FP16Compressor Compressor",
    f"{TOP}.ops": "Compression BytePSPushPull",
    f"{TOP}.cross_barrier": "Compression",
}

# `init(True)` of BytePS is distinguished from a communicator by its type.
ELSEWHERE = {("init", "lazy")}


def signatures() -> Iterator[tuple[str, str]]:
    for module, table in TABLES.values():
        for line in table.strip().splitlines():
            yield module, line
    for line in HOROVOD.strip().splitlines():
        if line.startswith(tuple(IN_MPI_OPS)):
            yield f"{TOP}.mpi_ops", line
        if line.startswith((*IN_FUNCTIONS, "allgather_object")) and "(" in line:
            yield f"{TOP}.functions", line
        if line.startswith("DistributedOptimizer"):
            yield f"{TOP}.optimizer", line


def find(module: str, path: str) -> object:
    found: object = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def parameters(text: str) -> list[tuple[str, object]]:
    """Names and defaults; without a default `inspect.Parameter.empty`."""
    pairs = []
    for part in re.split(r",\s*", text) if text else []:
        name, _, default = part.partition("=")
        value: object = inspect.Parameter.empty
        if default:
            value = WORDS[default] if default in WORDS else eval(default)
        pairs.append((name, value))
    return pairs


@pytest.mark.parametrize(("module", "line"), sorted(set(signatures())))
def test_a_name_can_be_called_as_the_originals(module: str, line: str) -> None:
    path, _, rest = line.partition("(")
    expected = parameters(rest.removesuffix(")"))
    function = find(module, path)
    signature = inspect.signature(function)
    own = list(signature.parameters.values())
    names = [parameter.name for parameter in own if parameter.name != "self"]
    positions = {name: index for index, name in enumerate(names)}
    for index, (name, default) in enumerate(expected):
        assert name in positions, f"{module}.{path} has no parameter {name}"
        assert positions[name] == index or (path, name) in ELSEWHERE, (
            f"{module}.{path}: {name} is number {positions[name]}, not {index}"
        )
        actual = signature.parameters[name].default
        if default is not inspect.Parameter.empty:
            assert actual is default or actual == default, f"{module}.{path}: {name}={actual!r}"
    required = {
        parameter.name
        for parameter in own
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and parameter.name != "self"
    }
    known = {name for name, _ in expected}
    assert required <= known, f"{module}.{path} needs {required - known}"


@pytest.mark.parametrize(("module", "names"), THINGS.items())
def test_a_thing_is_there(module: str, names: str) -> None:
    missing = [name for name in names.split() if not hasattr(importlib.import_module(module), name)]
    assert not missing


def test_the_public_names_are_those_that_are_exported() -> None:
    for module in (TOP, f"{TOP}.mpi_ops", f"{TOP}.ops"):
        imported = importlib.import_module(module)
        assert all(hasattr(imported, name) for name in imported.__all__)
        assert imported.__all__ == sorted(imported.__all__)
    listed = {name for line in (HOROVOD + BYTEPS).split() for name in re.findall(r"^(\w+)\(", line)}
    assert listed <= set(hvd.__all__)


def test_an_optimizer_has_what_scripts_call_on_it() -> None:
    signatures = {
        "step": "closure=None",
        "synchronize": "",
        "skip_synchronize": "",
        "set_backward_passes_per_step": "passes",
        "zero_grad": "set_to_none=True",
    }
    hvd.init()
    try:
        for op in (hvd.Average, hvd.Adasum):
            layer = torch.nn.Linear(1, 1)
            sgd = torch.optim.SGD(layer.parameters(), 0.1)
            optimizer = hvd.DistributedOptimizer(sgd, layer.named_parameters(), op=op)
            for name, text in signatures.items():
                own = inspect.signature(getattr(optimizer, name)).parameters
                assert [(p.name, p.default) for p in own.values()] == parameters(text), name
    finally:
        hvd.shutdown()
