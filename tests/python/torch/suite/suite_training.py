"""Optimizers, the state of models and of optimizers, uneven data, and leaving the job."""

from __future__ import annotations

import warnings

import torch
from common_suite import FLOATS, LAST, ODD, close, goes_on
from torch import nn

import sumpter.torch as hvd
from common import ALL, RANK, WORLD_SIZE, raises, same

DATA = torch.randn(24, 4, generator=torch.Generator().manual_seed(7))


def make_model(seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def backward(model: nn.Module) -> None:
    model(DATA[RANK::WORLD_SIZE]).pow(2).mean().backward()


def check_alike(model: nn.Module) -> None:
    own = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    for other in hvd.allgather(own.unsqueeze(0)):
        same(other, own)


def check_parameters_become_equal() -> None:
    for dtype in FLOATS:
        model = make_model(seed=RANK).to(dtype)
        model.register_buffer("steps", torch.tensor(RANK))
        hvd.broadcast_parameters(model.state_dict(), root_rank=LAST)
        check_alike(model)
        assert model.steps == LAST
        hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
        check_alike(model)
    with raises(TypeError, "broadcast_object"):
        hvd.broadcast_parameters({"epoch": 3})
    with raises(hvd.HorovodInternalError, f"rank {LAST}", "root 0", "root 1"):
        hvd.broadcast_parameters(make_model().state_dict(), root_rank=int(ODD))


def check_optimizer_state_becomes_equal() -> None:
    """Also where only the root has any; gradients exist after that, as with Horovod."""
    for kind, options in (
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.Adagrad, {}),
        (torch.optim.RMSprop, {}),
    ):
        model = make_model()
        optimizer = kind(model.parameters(), lr=0.1 * (RANK + 1), **options)
        if ODD:
            backward(model)
            optimizer.step()
            optimizer.zero_grad()
        model[0].weight.requires_grad_(False)
        had_state = bool(optimizer.state)
        hvd.broadcast_optimizer_state(optimizer, LAST)
        assert optimizer.param_groups[0]["lr"] == 0.1 * WORLD_SIZE
        states = hvd.allgather_object(str(optimizer.state_dict()))
        assert set(states) == {states[0]}
        for parameter in model.parameters():
            if had_state or not parameter.requires_grad:
                assert parameter.grad is None
            else:
                same(parameter.grad, torch.zeros_like(parameter))
    # A gradient that is there stays.
    model = make_model()
    backward(model)
    before = model[0].bias.grad.clone()
    hvd.broadcast_optimizer_state(torch.optim.SGD(model.parameters(), lr=0.1), 0)
    same(model[0].bias.grad, before)
    with raises(ValueError, "LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), 0)


def check_training_is_that_of_one_process() -> None:
    for options in ({}, {"compression": hvd.Compression.fp16}, {"gradient_predivide_factor": 2.0}):
        model, alone = make_model(), make_model()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), **options)
        reference = torch.optim.SGD(alone.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            backward(model)
            optimizer.step()
            reference.zero_grad()
            alone(DATA).pow(2).mean().backward()
            reference.step()
        check_alike(model)
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def check_names_that_scripts_read() -> None:
    for op in (hvd.Average, hvd.Adasum):
        model = make_model()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), op=op)
        expected = {parameter: name for name, parameter in model.named_parameters()}
        assert optimizer._parameter_names == expected
    with raises(ValueError, "duplicate"):
        hvd.DistributedOptimizer(sgd, [("same", p) for p in model.parameters()])


def freeze_and_add(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    if step == 2:
        model[0].weight.requires_grad_()
        model[2].bias.requires_grad_(False)
    if step == 4:
        model[2].shift = nn.Parameter(torch.ones(2))
        model[2].register_forward_hook(lambda layer, _, output: output + layer.shift)
        optimizer.add_param_group({"params": [model[2].shift], "lr": 0.05})


def check_parameters_that_are_trained_later() -> None:
    """Frozen ones stay as they are; those that are unfrozen or added train like any other."""
    for options in (
        {},
        {"named": False},
        {"backward_passes_per_step": 2},
        {"overlap_forward": True},
        {"op": hvd.Adasum},
    ):
        passes = options.get("backward_passes_per_step", 1)
        model, alone = make_model(), make_model()
        for either in (model, alone):
            either[0].weight.requires_grad_(False)
        own, reference = (
            torch.optim.SGD(either.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
            for either in (model, alone)
        )
        names = model.named_parameters() if options.pop("named", True) else None
        optimizer = hvd.DistributedOptimizer(own, names, **options)
        for step in range(6):
            for either, its_optimizer in ((model, optimizer), (alone, reference)):
                freeze_and_add(either, its_optimizer, step)
                its_optimizer.zero_grad()
            for _ in range(passes):
                backward(model)
                alone(DATA).pow(2).mean().backward()
            optimizer.step()
            reference.step()
        if "overlap_forward" in options:
            optimizer.synchronize()
        check_alike(model)
        if "op" not in options:
            for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def check_layers_that_train_in_turn() -> None:
    """The first layer is trained once the last is frozen, by clipped gradients."""
    for options in ({}, {"overlap_forward": True}):
        model, alone = make_model(), make_model()
        own, reference = (torch.optim.SGD(m.parameters(), lr=0.5) for m in (model, alone))
        for either in (model, alone):
            either[0].requires_grad_(False)
        optimizer = hvd.DistributedOptimizer(own, model.named_parameters(), **options)
        for step in range(4):
            for either, its_optimizer in ((model, optimizer), (alone, reference)):
                if step == 2:
                    either[0].requires_grad_(True)
                    either[2].requires_grad_(False)
                its_optimizer.zero_grad()
            backward(model)
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            with optimizer.skip_synchronize():
                optimizer.step()
            alone(DATA).pow(2).mean().backward()
            nn.utils.clip_grad_norm_(alone.parameters(), 0.05)
            reference.step()
        check_alike(model)
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def check_explicit_synchronization() -> None:
    """Clipping, with and without the context that says so."""
    model = make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            backward(model)
            with raises(AssertionError, "zero_grad()"):
                optimizer.zero_grad()
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            with optimizer.skip_synchronize():
                optimizer.step()
            optimizer.zero_grad()
    assert not caught
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        backward(model)
        optimizer.synchronize()
        optimizer.step()
    assert len(caught) == 1
    said = "optimizer.step() called without optimizer.skip_synchronize()"
    assert said in str(caught[0].message), caught[0].message
    check_alike(model)


def check_sparse_embeddings() -> None:
    """Sparse and dense exchanges end alike, and the optimizer sees sparse gradients in both."""
    for kind in (torch.optim.SGD, torch.optim.SparseAdam):
        weights = []
        for as_dense in (False, True):
            for overlap in (False, True):
                torch.manual_seed(5)
                model = nn.Sequential(nn.Embedding(12, 3, sparse=True))
                optimizer = kind(model.parameters(), lr=0.1)
                hvd.broadcast_optimizer_state(optimizer)
                optimizer = hvd.DistributedOptimizer(
                    optimizer,
                    model.named_parameters(),
                    sparse_as_dense=as_dense,
                    overlap_forward=overlap,
                )
                for step in range(3):
                    optimizer.zero_grad()
                    model(torch.tensor([RANK, 10, step])).sin().sum().backward()
                    if step == 2:
                        optimizer.synchronize()
                        assert model[0].weight.grad.is_sparse
                        with optimizer.skip_synchronize():
                            optimizer.step()
                    else:
                        optimizer.step()
                check_alike(model)
                weights.append(model[0].weight.detach().clone())
        for other in weights[1:]:
            close(other, weights[0])


def check_a_sparse_gradient_that_one_rank_lacks() -> None:
    model = nn.Embedding(6, 2, sparse=True)
    hvd.broadcast_parameters(model.state_dict())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SparseAdam(model.parameters(), lr=0.1), sparse_as_dense=True
    )
    for step in range(2):
        optimizer.zero_grad()
        if step == 0 or not ODD:
            model(torch.tensor([RANK])).sum().backward()
        optimizer.step()
    check_alike(model)


def check_a_set_of_ranks_trains() -> None:
    mine = hvd.add_process_set([0] if WORLD_SIZE == 2 else [0, LAST])
    model = make_model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), process_set=mine
    )
    # The exchange begins while backward runs, so this rank's own gradient is another model's.
    alone = make_model()
    backward(alone)
    gradient = alone[0].bias.grad
    backward(model)
    optimizer.step()
    own = hvd.allgather_object([model[0].bias.grad.tolist(), gradient.tolist()])
    in_set = [own[rank] for rank in mine.ranks]
    mean = torch.tensor([given for _, given in in_set]).mean(0)
    for found, _ in in_set:
        close(torch.tensor(found), mean)
    if not mine.included():
        close(model[0].bias.grad, gradient)
    assert not torch.equal(model[0].bias, before[1])
    assert hvd.remove_process_set(mine)


def check_join() -> None:
    """Rank r has r more batches. What the others begin meanwhile divides by all ranks."""
    for batch in range(RANK):
        having = [rank for rank in ALL if rank > batch]
        result = hvd.allreduce(torch.full((4,), RANK + 1.0), name="with less data")
        close(result, torch.full((4,), sum(rank + 1.0 for rank in having) / WORLD_SIZE))
        rows = hvd.allgather(torch.full((2,), RANK))
        same(rows, torch.tensor(having).repeat_interleave(2))
        # The root has data, so all who have some get its tensor.
        same(hvd.broadcast(torch.tensor([RANK]), LAST), torch.tensor([LAST]))
    if RANK > 0 and WORLD_SIZE == 2:
        with raises(hvd.HorovodInternalError, "out of data"):
            hvd.broadcast(torch.ones(2), 0, name="from one without data")
    last = hvd.join()
    assert hvd.allgather_object(last) == [last] * WORLD_SIZE
    assert WORLD_SIZE == 2 or last == LAST


def check_leaving_and_joining_again() -> None:
    for _ in range(2):
        hvd.shutdown()
        assert not hvd.is_initialized()
        with raises(ValueError, "init()"):
            hvd.allreduce(torch.ones(2))
        hvd.init()
        assert (hvd.rank(), hvd.size()) == (RANK, WORLD_SIZE)
        goes_on()


def check_a_rank_that_leaves_is_missed_and_all_join_anew() -> None:
    if ODD:
        hvd.shutdown()
    else:
        with raises(hvd.HorovodInternalError, "left"):
            hvd.allreduce(torch.ones(2), name="never")
    hvd.init()


CHECKS = [
    check_parameters_become_equal,
    check_optimizer_state_becomes_equal,
    check_training_is_that_of_one_process,
    check_parameters_that_are_trained_later,
    check_layers_that_train_in_turn,
    check_names_that_scripts_read,
    check_join,
    check_explicit_synchronization,
    check_sparse_embeddings,
    check_a_sparse_gradient_that_one_rank_lacks,
    check_a_rank_that_leaves_is_missed_and_all_join_anew,
    check_a_set_of_ranks_trains,
    check_leaving_and_joining_again,
]
