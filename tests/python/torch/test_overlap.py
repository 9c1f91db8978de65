"""The order in which parameters are needed, and updates left to the next forward pass."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_modules

import sumpter.torch as hvd
from jobs import Job
from sumpter.torch import cross_barrier
from sumpter.torch.parallel import DistributedDataParallel
from sumpter.torch.training import overlap
from sumpter.torch.training.order import NeedOrder

DATA = torch.randn(6, 4, generator=torch.Generator().manual_seed(7))


def test_ranks_cross_the_barrier_and_compute_the_same(make_job: Callable[..., Job]) -> None:
    job = make_job(2, 1, deterministic=True)
    job.make_pipe("crossed")
    job.make_pipe("crossed on servers")
    job.start("overlap.py").finish()
    assert job.result(0) == job.result(1)


class Twisted(nn.Module):
    """Uses its layers in another order than it has registered them, and one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 4)
        self.branches = nn.ModuleList([nn.Linear(4, 4, bias=False) for _ in range(2)])
        self.attention = nn.MultiheadAttention(4, 2)
        self.first = nn.Linear(4, 4)
        self.branch = 0

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        hidden = self.first(data)
        hidden = self.branches[self.branch](hidden) + self.first(hidden)
        hidden = self.attention(hidden, hidden, hidden)[0]
        return self.last(hidden).tanh()


def make_model(kind: Callable[[], nn.Module] = Twisted) -> nn.Module:
    torch.manual_seed(3)
    return kind()


def first_uses(model: nn.Module, forward: Callable[[], torch.Tensor]) -> list[str]:
    """The modules that hold parameters in the order in which they are called."""
    called: list[str] = []
    hooks = [
        part.register_forward_pre_hook(lambda *_, name=name: called.append(name))
        for name, part in model.named_modules()
    ]
    forward()
    for hook in hooks:
        hook.remove()
    holders = {name.rpartition(".")[0] for name, _ in model.named_parameters()}
    return [name for name in dict.fromkeys(called) if name in holders]


def modules_of(model: nn.Module, parameters: list[nn.Parameter]) -> list[str]:
    names = {parameter: name.rpartition(".")[0] for name, parameter in model.named_parameters()}
    return list(dict.fromkeys(names[parameter] for parameter in parameters))


class TestOrder:
    def test_what_backward_completes_last_is_needed_first(self) -> None:
        a, b, c = (nn.Parameter(torch.ones(1)) for _ in range(3))
        order = NeedOrder([a, b, c])
        assert [order.priority(p) for p in (a, b, c)] == [3, 2, 1]
        for parameter in (b, a, c):
            order.completed(parameter)
        assert order.parameters()[0] is a
        order.adopt()
        assert [order.priority(p) for p in (a, b, c)] == [2, 1, 3]

    def test_parameters_that_were_not_reached_keep_their_places(self) -> None:
        a, b, c = (nn.Parameter(torch.ones(1)) for _ in range(3))
        order = NeedOrder([a, b, c])
        for parameter in (a, c):
            order.completed(parameter)
        order.adopt()
        assert [order.priority(p) for p in (c, b, a)] == [3, 2, 1]
        order.adopt()
        assert [order.priority(p) for p in (c, b, a)] == [3, 2, 1]

    def test_a_pass_that_does_not_count_leaves_the_order(self) -> None:
        a, b = (nn.Parameter(torch.ones(1)) for _ in range(2))
        order = NeedOrder([a, b])
        order.completed(a)
        order.forget()
        for parameter in (b, a):
            order.completed(parameter)
        order.adopt()
        assert order.parameters()[0] is a

    @pytest.mark.usefixtures("alone")
    def test_it_is_that_of_the_forward_pass(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for owner in (wrap, own_parallel):
            model = make_model()
            exchange = owner(model)
            order = exchange.order
            assert modules_of(model, order.parameters())[0] == "last"
            for branch in (0, 1, 1, 0):
                model.branch = branch
                used = first_uses(model, lambda model=model: model(DATA))
                model(DATA).sum().backward()
                if exchange.pending:
                    exchange.finish()
                seen = modules_of(model, order.parameters())
                unused = f"branches.{1 - branch}"
                assert [n for n in seen if n not in (unused, "attention.out_proj")] == used
                model.zero_grad()


def wrap(model: nn.Module) -> hvd.optimizer.GradientExchange:
    wrapped = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    exchanges.append(wrapped)
    return wrapped._exchange


def own_parallel(model: nn.Module) -> hvd.optimizer.GradientExchange:
    parallel = DistributedDataParallel(model)
    exchanges.append(parallel)
    # What follows calls the model within, whose gradients are exchanged all the same.
    return parallel._exchange


exchanges: list[object] = []


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    exchanges.clear()
    gc.collect()
    assert not torch_modules._global_forward_pre_hooks
    assert not overlap._busy


def overlapped(
    model: nn.Module, kind: type[torch.optim.Optimizer] = torch.optim.SGD, **options: object
) -> torch.optim.Optimizer:
    options = {"lr": 0.1, **options}
    return hvd.DistributedOptimizer(
        kind(model.parameters(), **options), model.named_parameters(), overlap_forward=True
    )


def waiting(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    return [n for n, p in model.named_parameters() if p in optimizer._updates.waiting]


def backward(model: nn.Module) -> None:
    model(DATA).pow(2).mean().backward()


def values(model: nn.Module) -> torch.Tensor:
    """The parameters as they lie in memory."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def make_two() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def taken(steps: int = 1, **options: object) -> nn.Module:
    """The model after some steps without overlap."""
    model = make_model(make_two)
    optimizer = torch.optim.SGD(model.parameters(), **{"lr": 0.1, **options})
    for _ in range(steps):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
    return model


@pytest.mark.usefixtures("alone")
class TestAlone:
    def test_each_layer_waits_for_its_own_parameters(self) -> None:
        model = make_model()
        optimizer = overlapped(model)
        backward(model)
        optimizer.step()
        everything = [name for name, _ in model.named_parameters()]
        # The branch that was not taken has a gradient of zeros.
        assert waiting(model, optimizer) == everything
        assert all(parameter.grad is None for parameter in model.parameters())
        seen = {}
        for name in ("first", "attention", "last"):
            part = model.get_submodule(name)
            part.register_forward_pre_hook(
                lambda _, __, name=name: seen.update({name: waiting(model, optimizer)})
            )
        model(DATA)
        assert "first.weight" not in seen["first"] and "last.weight" in seen["first"]
        # Attention uses the weights of a layer that it does not call.
        assert not [n for n in seen["attention"] if n.startswith("attention.")]
        assert "last.weight" in seen["attention"] and "last.weight" not in seen["last"]
        # The other branch has never been called: the model may use its weight directly.
        assert waiting(model, optimizer) == []
        for branch, other in ((1, 0), (0, 1)):
            model.branch = branch
            backward(model)
            optimizer.step()
            model(DATA)
            assert waiting(model, optimizer) == [f"branches.{other}.weight"]
        model.zero_grad()
        optimizer.synchronize()
        assert waiting(model, optimizer) == []

    def test_saving_and_loading_wait(self) -> None:
        model, optimizer = self.after_a_step()
        expected = taken(1, momentum=0.9)
        assert not torch.equal(values(model), values(expected))
        part = model[0].state_dict()
        assert waiting(model, optimizer) == ["2.weight", "2.bias"]
        assert torch.equal(part["weight"], expected[0].weight)
        model.state_dict()
        assert torch.equal(values(model), values(expected))
        model, optimizer = self.after_a_step()
        state = optimizer.state_dict()["state"]
        assert len(state) == 4 and all(one["momentum_buffer"] is not None for one in state.values())
        model, optimizer = self.after_a_step()
        model.load_state_dict(taken(0).state_dict())
        assert waiting(model, optimizer) == []
        assert torch.equal(values(model), values(taken(0)))
        model, optimizer = self.after_a_step()
        optimizer.load_state_dict(optimizer.state_dict())
        assert torch.equal(values(model), values(expected))
        twin = copy.deepcopy(model)
        twin.state_dict()
        model, optimizer = self.after_a_step()
        hvd.broadcast_parameters(model.named_parameters())
        assert torch.equal(values(model), values(expected))
        model, optimizer = self.after_a_step()
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
        assert torch.equal(values(model), values(expected))

    def test_evaluation_sees_the_whole_step(self) -> None:
        expected = taken(1, momentum=0.9)
        for scene in (torch.no_grad, torch.inference_mode):
            model, optimizer = self.after_a_step()
            model.eval()
            with scene():
                assert torch.equal(model(DATA), expected(DATA))
            assert waiting(model, optimizer) == []
            model.train()
            backward(model)
            optimizer.step()
            with scene():
                model(DATA)
            # What the optimizer has made there is of use outside.
            backward(model)
            optimizer.step()
            optimizer.synchronize()
            assert torch.equal(values(model), values(taken(3, momentum=0.9)))

    def test_autocast_does_not_reach_the_update(self) -> None:
        model, plain = make_model(make_two), make_model(make_two)
        optimizers = [overlapped(model), torch.optim.SGD(plain.parameters(), lr=0.1)]
        for _ in range(3):
            for each, optimizer in zip((model, plain), optimizers, strict=True):
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    loss = each(DATA).float().pow(2).mean()
                loss.backward()
                optimizer.step()
        model.state_dict()
        assert torch.equal(values(model), values(plain))

    def test_options_are_those_at_the_time_of_the_step(self) -> None:
        for initial in (0.1, torch.tensor(0.1)):
            model = make_model(make_two)
            copied = initial.clone() if isinstance(initial, torch.Tensor) else initial
            optimizer = overlapped(model, torch.optim.Adam, lr=copied)
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            plain = make_model(make_two)
            other = torch.optim.Adam(plain.parameters(), lr=0.1)
            other_schedule = torch.optim.lr_scheduler.ExponentialLR(other, 0.5)
            for _ in range(3):
                for each, step, rate in (
                    (model, optimizer, schedule), (plain, other, other_schedule)
                ):  # fmt: skip
                    step.zero_grad()
                    backward(each)
                    step.step()
                    rate.step()
            optimizer.synchronize()
            torch.testing.assert_close(values(model), values(plain))
            assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.1 / 8)

    def test_a_failure_is_raised_at_the_next_use_and_names_the_parameter(self) -> None:
        model, optimizer = self.after_a_step()
        optimizer._updates.waiting[model[2].bias].handle = Failing()
        with pytest.raises(hvd.PeerLostError, match="rank 1") as raised:
            model(DATA)
        assert any("2.bias" in note for note in raised.value.__notes__)
        # Nothing waits for what cannot come any more.
        assert waiting(model, optimizer) == []
        model, optimizer = self.after_a_step()
        for name in ("0.weight", "2.bias"):
            optimizer._updates.waiting[model.get_parameter(name)].handle = Failing()
        before = taken(0).state_dict()
        model.load_state_dict(before)
        optimizer.load_state_dict(optimizer.state_dict())
        assert torch.equal(values(model), values(taken(0)))

    def test_parameters_used_directly_are_found_out(self) -> None:
        model, optimizer = self.after_a_step()
        with pytest.raises(AssertionError, match=r"2\.weight was used before its update"):
            nn.functional.linear(DATA, model[2].weight).sum().backward()
        optimizer.synchronize()
        model, optimizer = self.after_a_step()
        optimizer.synchronize_parameters([model[2].weight])
        assert "2.weight" not in waiting(model, optimizer)
        nn.functional.linear(DATA, model[2].weight).sum().backward()
        optimizer.synchronize()

    def test_gradients_in_flight_must_not_be_changed(self) -> None:
        for change in (
            lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.01),
            lambda model: setattr(model[0].bias, "grad", torch.ones(4)),
        ):
            model = make_model(make_two)
            optimizer = overlapped(model)
            backward(model)
            change(model)
            with pytest.raises(AssertionError, match="synchronize"):
                optimizer.step()
            optimizer.synchronize()
            change(model)
            with optimizer.skip_synchronize():
                optimizer.step()
            assert waiting(model, optimizer) == []
        with pytest.raises(AssertionError, match="zero_grad"):
            backward(model)
            optimizer.zero_grad()
        optimizer.step()
        optimizer.zero_grad()
        model.zero_grad(set_to_none=False)
        optimizer.synchronize()

    def test_who_looks_at_everything_gets_a_whole_step(self) -> None:
        model = make_model(make_two)
        optimizer = overlapped(model)
        calls = []
        hook = optimizer.register_step_post_hook(lambda *_: calls.append(values(model)))
        backward(model)
        optimizer.step()
        assert torch.equal(calls[0], values(taken(1))) and len(calls) == 1
        hook.remove()

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(DATA).pow(2).mean()
            loss.backward()
            return loss

        assert optimizer.step(closure) > 0
        assert torch.equal(values(model), values(taken(2)))

    def test_optimizers_that_need_all_parameters_at_once_are_refused(self) -> None:
        parameters = list(make_two().parameters())
        for kind, options, expected in (
            (torch.optim.LBFGS, {}, "LBFGS"),
            (Mine, {"lr": 0.1}, overlap.DECLARATION),
            (torch.optim.Adam, {"differentiable": True}, "differentiable"),
        ):
            with pytest.raises(ValueError, match=expected):
                hvd.DistributedOptimizer(kind(parameters, **options), overlap_forward=True)
        with pytest.raises(ValueError, match="Adasum"):
            sgd = torch.optim.SGD(parameters, lr=0.1)
            hvd.DistributedOptimizer(sgd, op=hvd.Adasum, overlap_forward=True)
        Mine.updates_parameters_independently = True
        wrapped = hvd.DistributedOptimizer(Mine(parameters, lr=0.1), overlap_forward=True)
        with pytest.raises(ValueError, match="already"):
            hvd.DistributedOptimizer(wrapped, overlap_forward=True)

    def test_a_step_outlives_its_optimizer(self) -> None:
        model, optimizer = self.after_a_step()
        del optimizer
        gc.collect()
        model(DATA)
        assert torch.equal(values(model), values(taken(1, momentum=0.9)))

    def test_a_new_optimizer_begins_when_the_old_one_is_done(self) -> None:
        model, _ = self.after_a_step()
        overlapped(model)
        assert torch.equal(values(model), values(taken(1, momentum=0.9)))

    def test_compiled_models_wait_as_well(self) -> None:
        model = make_model(make_two)
        compiled = torch.compile(model, backend="eager")
        optimizer = overlapped(model)
        for _ in range(3):
            optimizer.zero_grad()
            backward(compiled)
            optimizer.step()
        optimizer.synchronize()
        assert torch.equal(values(model), values(taken(3)))

    def test_cross_barrier_ends_with_a_whole_step(self) -> None:
        model = make_model(make_two)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = cross_barrier.CrossBarrier(model, sgd, num_steps=2)
        assert isinstance(optimizer, torch.optim.SGD)
        for expected in (4, 0, 0):
            optimizer.zero_grad()
            backward(model)
            optimizer.step()
            assert len(waiting(model, optimizer)) == expected
        assert torch.equal(values(model), values(taken(3)))
        with pytest.raises(ValueError, match="not the model's"):
            cross_barrier.CrossBarrier(make_two(), sgd)
        with pytest.raises(ValueError, match="num_steps"):
            cross_barrier.CrossBarrier(model, sgd, num_steps=0)

    def after_a_step(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = make_model(make_two)
        # The hooks of the model's parts are found when they are called.
        optimizer = overlapped(model, momentum=0.9)
        backward(model)
        optimizer.step()
        assert len(waiting(model, optimizer)) == 4
        return model, optimizer


class Failing:
    def synchronize(self) -> None:
        raise hvd.PeerLostError("rank 1 was lost")


class Mine(torch.optim.SGD):
    def step(self, closure: object = None) -> None:
        super().step()
