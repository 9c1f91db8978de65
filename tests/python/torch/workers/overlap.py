"""Training that crosses the barrier, against the same without it; two ranks."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sumpter.torch as hvd
from common import FOLDER, RANK, WORLD_SIZE, announce, join_torch, leave_result, raises, same
from sumpter.torch.c10d import backend, collective
from sumpter.torch.collectives.reduction import RepeatedReduction
from sumpter.torch.cross_barrier import CrossBarrier

DATA = torch.randn(24, 4, generator=torch.Generator().manual_seed(7))
STEPS = 4

Step = Callable[[nn.Module, torch.optim.Optimizer, int], None]


class Model(nn.Module):
    """Registered in another order than it is used in, with tied and with branching layers."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 4)
        self.branches = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])
        self.attention = nn.MultiheadAttention(6, 2)
        self.norm = nn.BatchNorm1d(6)
        self.first = nn.Linear(4, 6)
        self.tied = nn.Linear(6, 4)
        self.tied.weight = self.last.weight
        self.branch = 0

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.first(data))
        hidden = hidden + self.branches[self.branch](hidden).tanh()
        hidden = self.attention(hidden, hidden, hidden)[0]
        return self.last(hidden) + self.tied(hidden.tanh())


def make_model(kind: Callable[[], nn.Module] = Model) -> nn.Module:
    torch.manual_seed(3)
    return kind()


def batch(step: int) -> torch.Tensor:
    return DATA[(RANK + WORLD_SIZE * step) % 4 :: 4]


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    if isinstance(model, nn.Embedding):
        return model(torch.tensor([RANK, 3 + step % 2])).sin().sum()
    return model(batch(step)).pow(2).mean()


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    loss_of(model, step).backward()
    optimizer.step()


def train(
    kind: str,
    options: dict[str, object],
    overlap: bool,
    take: Step = plain_step,
    model: nn.Module | None = None,
    **wrapping: object,
) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
    """The parameters and the optimizer's state after some steps."""
    model = make_model() if model is None else model
    halves = list(model.parameters())
    groups = [{"params": halves[:3]}, {"params": halves[3:], "lr": 0.05}]
    given = groups if len(halves) > 3 else halves
    optimizer = hvd.DistributedOptimizer(
        getattr(torch.optim, kind)(given, **{"lr": 0.02, **options}),
        model.named_parameters(),
        overlap_forward=overlap,
        **wrapping,
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for step in range(STEPS):
        take(model, optimizer, step)
        schedule.step()
    # Each waits for the updates by itself.
    return model.state_dict(), optimizer.state_dict()


def check_same(kind: str, options: dict[str, object], take: Step = plain_step, **more: object):
    """The same bytes with and without overlap: of the model, and of the optimizer's state."""
    make = more.pop("make", Model)
    expected, actual = (
        train(kind, options, overlap, take, make_model(make), **more) for overlap in (False, True)
    )
    for name, tensor in expected[0].items():
        same(actual[0][name], tensor)
    assert actual[1]["param_groups"] == expected[1]["param_groups"], kind
    assert actual[1]["state"].keys() == expected[1]["state"].keys(), kind
    for index, state in expected[1]["state"].items():
        for key, value in state.items():
            other = actual[1]["state"][index][key]
            if isinstance(value, torch.Tensor):
                same(other, value)
            else:
                assert other == value, (kind, index, key)
    return actual[0]


def sparse() -> nn.Module:
    return nn.Embedding(6, 4, sparse=True)


def one_matrix() -> nn.Module:
    return nn.Linear(4, 3, bias=False)


OPTIMIZERS: dict[str, tuple[dict[str, object], ...]] = {
    "SGD": ({"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}, {"fused": True}),
    "Adam": ({"amsgrad": True}, {"fused": True}, {"foreach": True}),
    "AdamW": ({},),
    "NAdam": ({},),
    "RAdam": ({"decoupled_weight_decay": True},),
    "Adamax": ({"foreach": True},),
    "Adagrad": ({"initial_accumulator_value": 0.1},),
    "Adadelta": ({},),
    "RMSprop": ({"centered": True, "momentum": 0.1},),
    "Rprop": ({},),
    "ASGD": ({"t0": 1.0},),
    "Adafactor": ({},),
}


def check_optimizers() -> None:
    known = {name for name in torch.optim.__all__ if name[0].isupper()}
    others = known - set(OPTIMIZERS) - {"LBFGS", "Optimizer", "Muon", "SparseAdam"}
    assert not others, f"check these optimizers too: {others}"
    for name, variants in OPTIMIZERS.items():
        # An older torch does not have the newest ones.
        for options in variants if name in known else ():
            check_same(name, options)
    check_same("SparseAdam", {}, make=sparse)
    if "Muon" in known:
        check_same("Muon", {}, make=one_matrix)


def check_variants() -> None:
    for more in (
        {"compression": hvd.Compression.fp16},
        {"gradient_predivide_factor": 2.0},
        {"op": hvd.Sum},
    ):
        check_same("SGD", {"momentum": 0.9}, **more)
    check_same("SGD", {}, make=sparse)
    check_same("SGD", {}, make=sparse, sparse_as_dense=True)
    check_same("SGD", {}, plain_step, process_set=alone)


def branching(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Another branch on each rank and in each step; evaluation in between."""
    model.branch = (RANK + step) % 2
    plain_step(model, optimizer, step)
    if step == 2:
        model.eval()
        with torch.no_grad():
            model(batch(step))
        model.train()


def clipping(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """As Horovod's documents say; every other step is left to the next forward pass."""
    optimizer.zero_grad()
    loss_of(model, step).backward()
    if step % 2:
        optimizer.step()
        return
    optimizer.synchronize()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    assert norm > 0.05
    with optimizer.skip_synchronize():
        optimizer.step()


def growing(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """A layer gets a parameter after two steps."""
    if step == 2:
        shift = nn.Parameter(torch.full((6,), 1.0 if RANK == 0 else 7.0))
        hvd.broadcast_parameters([("shift", shift.data)])
        model.shift = shift
        model.norm.register_forward_hook(lambda _module, _input, output: output + model.shift)
        # Whose use is not its module's call.
        model.first.shift = shift
        optimizer.add_param_group({"params": [shift], "lr": 0.3})
    plain_step(model, optimizer, step)


def accumulating(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    for part in range(2):
        loss_of(model, 2 * step + part).backward()
    optimizer.step()


def scaling(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """A GradScaler looks at all gradients, and so has to wait for them."""
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    optimizer.zero_grad()
    scaler.scale(loss_of(model, step)).backward()
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    scaler.update()


def clearing_at_the_end(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    loss_of(model, step).backward()
    optimizer.step()
    model.zero_grad(set_to_none=bool(step % 2))


def synchronizing_late(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    plain_step(model, optimizer, step)
    if hasattr(optimizer, "synchronize_parameters"):
        optimizer.synchronize_parameters(list(model.parameters())[:2])
        optimizer.synchronize()
        before = [parameter.clone() for parameter in model.parameters()]
        optimizer.synchronize()
        for parameter, then in zip(model.parameters(), before, strict=True):
            same(parameter.detach(), then.detach())


def twice_synchronized(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Backward goes on after synchronize(), so the step waits for a second exchange."""
    optimizer.zero_grad()
    loss_of(model, step).backward()
    optimizer.synchronize()
    loss_of(model, step + 1).backward()
    optimizer.step()


def check_loops() -> None:
    momentum = {"momentum": 0.9}
    for take in (
        *(branching, clipping, scaling, clearing_at_the_end, synchronizing_late),
        twice_synchronized,
    ):
        with warnings.catch_warnings():
            # Without overlap a step is not taken in some of these before the scheduler's.
            warnings.simplefilter("ignore")
            check_same("SGD", momentum, take)
    check_same("SGD", momentum, accumulating, backward_passes_per_step=2)


def check_cross_barrier() -> None:
    """What BytePS scripts write, and the same as one process with both ranks' batches."""
    model = make_model(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)))
    whole = make_model(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)))
    adam = torch.optim.Adam(model.parameters(), lr=0.05)
    optimizer = CrossBarrier(model, adam, model.named_parameters(), num_steps=STEPS)
    other = torch.optim.Adam(whole.parameters(), lr=0.05)
    for step in range(STEPS):
        plain_step(model, optimizer, step)
        other.zero_grad()
        both = torch.cat([DATA[(rank + WORLD_SIZE * step) % 4 :: 4] for rank in range(WORLD_SIZE)])
        whole(both).pow(2).mean().backward()
        other.step()
    # Without a state_dict(): the last step has waited.
    for own, expected in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(own, expected)


def check_priorities() -> None:
    """Those of the order of use, the same on both ranks, and of the new order when it changes;
    none where the forward pass waits for all gradients."""
    seen: list[tuple[str, int]] = []

    def start(
        reduction: RepeatedReduction, gradient: torch.Tensor, priority: int, rescale: float
    ) -> object:
        seen.append((reduction.name, priority))
        return begin(reduction, gradient, priority, rescale)

    begin = RepeatedReduction.start
    with patched(RepeatedReduction, "start", start):
        for overlap in (False, True):
            model = make_model()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1),
                model.named_parameters(),
                overlap_forward=overlap,
            )
            for step in range(4):
                seen.clear()
                # A change shows in the priorities of the step after it.
                model.branch = 1 if step >= 2 else 2
                plain_step(model, optimizer, step)
            optimizer.synchronize()
            given = dict(seen)
            if not overlap:
                assert set(given.values()) == {0}, given
                continue
            exchange = optimizer._exchange
            names = {exchange._reductions[p].name: name for p, name in exchange.names.items()}
            ranked = [names[wire] for wire in sorted(given, key=given.get, reverse=True)]
            layers = list(dict.fromkeys(name.rpartition(".")[0] for name in ranked))
            used = [name for name in layers if name not in ("branches.0", "branches.2")]
            attention = ["attention", "attention.out_proj"]
            assert used == ["first", "norm", "branches.1", *attention, "last", "tied"], layers
            for other in hvd.allgather_object(given):
                assert other == given, (other, given)


def check_buckets() -> None:
    """DDP with the hook: later buckets, with the first layers, go first; the same result."""
    given: list[int] = []

    def reduce(
        group: collective.Group,
        kind: str,
        tensors: list[torch.Tensor],
        root: int | None,
        opts: object,
        priority: int = 0,
    ) -> object:
        given.append(priority)
        return begin(group, kind, tensors, root, opts, priority)

    begin = backend.reduce_in_place
    results = []
    for hooked in (True, False):
        layers = [nn.Linear(64, 64) for _ in range(4)]
        model = make_model(lambda layers=layers: nn.Sequential(nn.Linear(4, 64), *layers))
        torch.manual_seed(3)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.1)
        parallel = DistributedDataParallel(model, bucket_cap_mb=0.02)
        if hooked:
            parallel.register_comm_hook(None, hvd.ddp_hook)
        sgd = torch.optim.SGD(parallel.parameters(), lr=0.1)
        for step in range(3):
            given.clear()
            with patched(backend, "reduce_in_place", reduce):
                plain_step(parallel, sgd, step)
        # DDP makes its buckets anew after the first step.
        assert len(given) > 2
        assert given == (list(range(len(given))) if hooked else [0] * len(given)), given
        results.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    same(*results)


@contextlib.contextmanager
def patched(module: object, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


class Signalling(nn.Module):
    """Says when the layer before it has been computed with its new weights."""

    def __init__(self, pipe_name: str) -> None:
        super().__init__()
        self.active = False
        self.pipe_name = pipe_name

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        if self.active:
            self.active = False
            announce(self.pipe_name)
        return data


def check_on_servers() -> None:
    """The same with the optimizer on the servers, where it is only the waiting that comes later."""
    for name, options in {
        "SGD": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        "AdamW": {},
        "RMSprop": {"centered": True, "momentum": 0.1},
    }.items():
        for take in (plain_step, branching, clearing_at_the_end, synchronizing_late):
            check_same(name, options, take, on_servers=True)
    check_same("SGD", {}, accumulating, backward_passes_per_step=2, on_servers=True)
    check_same("SGD", {}, op=hvd.Sum, on_servers=True)
    check_same("AdamW", {}, growing, on_servers=True)

    model = make_model()
    kept = model.first.weight
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model.named_parameters(),
        overlap_forward=True,
        on_servers=True,
    )
    for _ in range(2):
        # One that goes directly before a module has waited for it.
        plain_step(model, optimizer, 0)
        assert kept.grad is None
        with raises(AssertionError, "first.weight was used before its update"):
            kept.sum().backward()
        optimizer.synchronize_parameters([kept])
        kept.sum().backward()
        with raises(AssertionError, "synchronize() between backward() and step()"):
            optimizer.synchronize()
        optimizer.step()
        optimizer.synchronize()
    # A closure, or a hook that looks at all parameters, has the step wait.
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append(1))
    plain_step(model, optimizer, 1)
    assert seen == [1]
    same(*(hvd.allgather(kept.detach().flatten().unsqueeze(0))[rank] for rank in range(2)))
    loss_of(model, 2).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    with raises(ValueError, "changed between backward() and step()"):
        optimizer.step()
    saved = optimizer.state_dict()
    optimizer.load_state_dict(saved)
    plain_step(model, optimizer, 3)
    optimizer.synchronize()
    hvd.barrier()


def check_the_barrier_is_crossed(pipe_name: str, **options: object) -> None:
    """Rank 0 computes a layer of the next forward pass before rank 1 has ended its step.

    Rank 1 does not begin the exchange of the second layer's gradient, which its backward pass does
    not reach, until then: with a barrier both would wait for ever.
    """
    signal = Signalling(pipe_name)
    model = make_model(
        lambda: nn.Sequential(nn.Linear(4, 3, bias=False), signal, nn.Linear(3, 2, bias=False))
    )
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        model.named_parameters(),
        overlap_forward=True,
        **options,
    )
    plain_step(model, optimizer, 0)
    start = model[0](batch(1)) if RANK == 1 else model(batch(1))
    optimizer.zero_grad()
    start.sum().backward()
    if RANK == 1:
        with (FOLDER / pipe_name).open("rb") as pipe:
            pipe.read()
    else:
        signal.active = True
    optimizer.step()
    model(batch(2))
    assert not signal.active
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    for other in hvd.allgather(mine.unsqueeze(0)):
        same(other, mine)


def check_misuse() -> None:
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), overlap_forward=True)
    loss_of(model, 0).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    with raises(AssertionError, "was changed between", "optimizer.synchronize()"):
        optimizer.step()
    optimizer.synchronize()
    hvd.barrier()


hvd.init()
alone = hvd.ProcessSet([0])
hvd.add_process_set(alone)
check_optimizers()
check_variants()
check_loops()
check_cross_barrier()
check_priorities()
check_the_barrier_is_crossed("crossed")
check_on_servers()
check_the_barrier_is_crossed("crossed on servers", on_servers=True)
check_misuse()
join_torch()
check_buckets()
dist.destroy_process_group()
trained = check_same("SGD", {"momentum": 0.9})
# Buffers are each rank's own.
leave_result(b"".join(t.numpy().tobytes() for n, t in trained.items() if "norm.r" not in n))
hvd.shutdown()
