"""What the callables of Horovod's and BytePS' TensorFlow and Keras interfaces take, ours take as
well. Read from the source text, so that no framework is needed.

The tables are the originals' signatures: name, parameters with their defaults. A parameter of ours
may have a default where theirs has none, and more may follow; names and order are theirs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "python" / "sumpter"
PAGE = ROOT / "docs" / "user" / "compatibility.md"

SET = "process_set=global_process_set"
DEVICES = "device_dense='', device_sparse=''"
CODEC = "compression=Compression.none"
SCALES = "prescale_factor=1.0, postscale_factor=1.0"
GROUPS = f"num_groups=0, groups=None, {SET}"
PASSES = "backward_passes_per_step=1"
AGGREGATED = "average_aggregated_gradients=False"
DIVIDED = "gradient_predivide_factor=1.0"
SCOPE = "ignore_name_scope=False"
REDUCE = f"average=None, {DEVICES}, {CODEC}, op=None, {SCALES}"
SHARE = f"device_dense='', {CODEC}, op=Average"
GRADIENTS = f"{DEVICES}, {CODEC}, sparse_as_dense=False"

RANKS = """init(comm=None, process_sets=None)
start_timeline(file_path, mark_cycles=False)
add_process_set(process_set)
remove_process_set(process_set)"""
HOROVOD = f"""{RANKS}
join()
allreduce(tensor, {REDUCE}, name=None, {SET}, {SCOPE})
grouped_allreduce(tensors, {REDUCE}, {SET}, {SCOPE}, name=None)
allgather(tensor, name=None, {SCOPE}, {SET})
grouped_allgather(tensors, name=None, {SCOPE}, {SET})
broadcast(tensor, root_rank, name=None, {SCOPE}, {SET})
broadcast_(variables, root_rank, name=None, {SET})
alltoall(tensor, splits=None, name=None, {SCOPE}, {SET})
reducescatter(tensor, {SHARE}, name=None, {SET}, {SCOPE}, {SCALES})
grouped_reducescatter(tensors, {SHARE}, {SET}, {SCALES})
rank_op(name=None)
local_rank_op(name=None)
size_op(process_set_id=0, name=None)
local_size_op(name=None)
process_set_included_op(process_set_id=0, name=None)
broadcast_variables(variables, root_rank, {SET}, inplace=False)
broadcast_object(obj, root_rank=0, session=None, name=None, {SET})
broadcast_object_fn(root_rank=0, session=None, name=None, {SET})
allgather_object(obj, session=None, name=None, {SET})
broadcast_global_variables(root_rank)
BroadcastGlobalVariablesHook(root_rank, device='')
DistributedOptimizer(optimizer, name=None, use_locking=False, {GRADIENTS}, {PASSES}, op=Average,\
 {DIVIDED}, {AGGREGATED}, {GROUPS}, scale_local_gradients=True)
DistributedGradientTape(gradtape, {GRADIENTS}, op=Average, {DIVIDED}, {GROUPS},\
 scale_local_gradients=True)
PartialDistributedGradientTape(gradtape, {GRADIENTS}, op=Average, {DIVIDED}, {GROUPS},\
 local_layers=None, scale_local_gradients=True)
"""
BYTEPS = f"""
init(lazy=True)
resume(num_workers, num_servers, global_rank, context=None)
push_pull(tensor, scope='', average=None, {DEVICES}, {CODEC}, op=None, enable_async=False)
broadcast(tensor, root_rank, scope='', name=None, is_variable=True)
broadcast_variables(variables, root_rank, scope='')
broadcast_global_variables(root_rank)
BroadcastGlobalVariablesHook(root_rank, device='')
DistributedOptimizer(optimizer, name=None, use_locking=False, {GRADIENTS}, {PASSES}, op=Average)
DistributedGradientTape(gradtape, {GRADIENTS}, op=Average)
"""
# Those of horovod.tensorflow.keras; in horovod.keras fewer follow on `op`.
KERAS = f"""{RANKS}
allreduce(value, name=None, average=None, {SCALES}, op=None, {CODEC})
allgather(value, name=None)
broadcast(value, root_rank, name=None)
reducescatter(value, name=None, op=Average)
broadcast_global_variables(root_rank)
load_model(filepath, custom_optimizers=None, custom_objects=None, {CODEC}, legacy_opts=False)
DistributedOptimizer(optimizer, name=None, {GRADIENTS}, {DIVIDED}, op=Average, {PASSES},\
 {AGGREGATED}, {GROUPS}, scale_local_gradients=True)
PartialDistributedOptimizer(optimizer, name=None, {GRADIENTS}, {DIVIDED}, op=Average, {PASSES},\
 {AGGREGATED}, {GROUPS}, local_layers=None, scale_local_gradients=True)
"""
# Those of byteps.keras and byteps.tensorflow.keras.
BYTEPS_KERAS = f"""
init(lazy=True)
push_pull(value, name=None, average=True)
broadcast(value, root_rank, name=None)
broadcast_global_variables(root_rank)
load_model(filepath, custom_optimizers=None, custom_objects=None, {CODEC})
DistributedOptimizer(optimizer, name=None, {GRADIENTS})
"""
CALLBACKS = """
BroadcastGlobalVariablesCallback(root_rank, device='', local_variables=None)
MetricAverageCallback(device='')
LearningRateScheduleCallback(initial_lr, multiplier, start_epoch=0, end_epoch=None,\
 staircase=True, momentum_correction=True, steps_per_epoch=None)
LearningRateWarmupCallback(initial_lr, warmup_epochs=5, momentum_correction=True,\
 steps_per_epoch=None, verbose=0)
BestModelCheckpoint(monitor='val_loss', verbose=0, mode='auto', save_weights_only=False,\
 save_freq='epoch')
"""
BYTEPS_CALLBACKS = """
BroadcastGlobalVariablesCallback(root_rank, device='')
MetricAverageCallback(device='')
LearningRateScheduleCallback(multiplier, start_epoch=0, end_epoch=None, staircase=True,\
 momentum_correction=True, steps_per_epoch=None, initial_lr=None)
LearningRateWarmupCallback(warmup_epochs=5, momentum_correction=True, steps_per_epoch=None,\
 verbose=0, initial_lr=None)
"""
TABLES = {
    ("sumpter.tensorflow", HOROVOD),
    ("sumpter.tensorflow", BYTEPS),
    ("sumpter.keras", KERAS),
    ("sumpter.keras", BYTEPS_KERAS),
    ("sumpter.keras.callbacks", CALLBACKS),
    ("sumpter.keras.callbacks", BYTEPS_CALLBACKS),
}

# BytePS' arguments that have another place behind Horovod's: scripts give them by name.
ELSEWHERE = {
    ("init", "lazy"),
    ("push_pull", "enable_async"),
    ("broadcast", "scope"),
    ("broadcast", "name"),
    ("broadcast", "is_variable"),
    ("broadcast_variables", "scope"),
}
# Horovod's take the learning rate first.
ALL_ELSEWHERE = {"LearningRateScheduleCallback", "LearningRateWarmupCallback"}


def lines() -> Iterator[tuple[str, str, bool]]:
    """Each signature, and whether it is of Horovod, whose order of parameters is ours."""
    for module, table in TABLES:
        for line in table.strip().splitlines():
            yield module, line, table in (HOROVOD, KERAS, CALLBACKS)


Definition = ast.FunctionDef | ast.ClassDef


def find(module: str, name: str) -> Definition:
    """The definition of a module's name, which may be imported from another module."""
    path = PACKAGE.joinpath(*module.split(".")[1:])
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, Definition) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    assert node.module is not None
                    return find(node.module, alias.name)
    raise AssertionError(f"{module} has no {name}")


def function_of(found: Definition) -> ast.FunctionDef:
    """What is called: of a class its constructor."""
    if isinstance(found, ast.FunctionDef):
        return found
    (made,) = (one for one in found.body if getattr(one, "name", "") == "__init__")
    assert isinstance(made, ast.FunctionDef)
    return made


def parameters(function: ast.FunctionDef) -> dict[str, str | None]:
    """Names and defaults, as text; None without one."""
    given = [one.arg for one in function.args.posonlyargs + function.args.args]
    defaults = [ast.unparse(one) for one in function.args.defaults]
    found = dict(zip(given, [None] * (len(given) - len(defaults)) + defaults, strict=True))
    found.pop("self", None)
    return found


def originals(line: str) -> tuple[str, dict[str, str | None]]:
    name, _, rest = line.partition("(")
    pairs = [part.partition("=") for part in re.split(r",\s*", rest.removesuffix(")")) if part]
    return name, {word: default or None for word, _, default in pairs}


@pytest.mark.parametrize(("module", "line", "ordered"), sorted(set(lines())))
def test_a_name_can_be_called_as_the_originals(module: str, line: str, ordered: bool) -> None:
    name, expected = originals(line)
    own = parameters(function_of(find(module, name)))
    places = list(own)
    for index, (word, default) in enumerate(expected.items()):
        assert word in own, f"{module}.{name} has no parameter {word}"
        is_elsewhere = (name, word) in ELSEWHERE or name in ALL_ELSEWHERE
        assert places[index] == word or (is_elsewhere and not ordered), (
            f"{module}.{name}: {word} is number {places.index(word)}, not {index}"
        )
        if default is not None:
            assert own[word] == default, f"{module}.{name}: {word}={own[word]}"
    needed = {word for word, default in own.items() if default is None}
    assert needed <= set(expected), f"{module}.{name} needs {needed - set(expected)}"


def unused(function: ast.FunctionDef) -> set[str]:
    """The parameters that nothing in a function looks at; none of one that only refuses."""
    if isinstance(function.body[-1], ast.Raise):
        return set()
    read = {
        node.id for one in function.body for node in ast.walk(one) if isinstance(node, ast.Name)
    }
    return set(parameters(function)) - read


def test_arguments_that_change_nothing_are_listed() -> None:
    functions = {function_of(find(module, originals(line)[0])) for module, line, _ in lines()}
    ignored = set().union(*map(unused, functions))
    text = PAGE.read_text().partition("## Arguments that change nothing")[2]
    listed = set(re.findall(r"`(\w+)`", "".join(re.findall(r"(?m)^\| ([^|]+)\|", text))))
    assert ignored <= listed, f"{PAGE.name} does not list {sorted(ignored - listed)}"
    known = {word for function in functions for word in parameters(function)}
    assert listed <= known, f"no function takes {sorted(listed - known)}"
