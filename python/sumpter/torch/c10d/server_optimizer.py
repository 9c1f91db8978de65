"""The optimizer on the servers for torch's DistributedDataParallel, by a communication hook.

DDP hands each bucket of gradients to the hook while backward is under way. The bucket goes as one
round for each of its parameters, as with DistributedOptimizer(on_servers=True), and is done when
their new values are there. DDP waits for all buckets at the end of backward, so the parameters are
new then; of parameters on a device, for what is enqueued from then on.
"""

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sumpter._core import membership
from sumpter._core.handles import RoundHandle
from sumpter._core.process_sets import global_process_set
from sumpter._core.staging import DeviceRound
from sumpter._errors import UnsupportedError
from sumpter.torch.c10d.ddp_hook import backend_of
from sumpter.torch.optimizer import wrap_on_servers
from sumpter.torch.training.gradients import Names
from sumpter.torch.training.on_servers import ServerUpdates

if TYPE_CHECKING:
    from sumpter.torch.c10d.backend import SumpterBackend


def server_optimizer(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer
) -> torch.optim.Optimizer:
    """Runs the optimizer of a DDP model on the servers; use what this returns in its place.

    Registers a communication hook of `model`, whose process group must be that of all ranks, with
    the backend "sumpter". `optimizer` must have exactly the parameters of the model that need
    gradients. All is as with DistributedOptimizer(on_servers=True), with which it agrees to the
    bit: the rules, `state_dict()`, parameter groups, schedulers. Parameters are new when backward()
    returns, and step() checks that nothing has changed since; gradients of several backward passes
    are added up within `model.no_sync()`. After backward() `.grad` has this rank's own gradient,
    not the average. Of parameters on a CUDA device the streams wait for the new values, as with
    `ddp_hook`, and neither backward() nor step() does.

    All ranks must call this. Raises UnsupportedError for what servers cannot update, ValueError for
    another backend, a model that has a communication hook, or an optimizer of other parameters.
    """
    if not isinstance(model, DistributedDataParallel):
        raise ValueError(
            f"the model is a {type(model).__name__}: wrap it in torch.nn.parallel."
            "DistributedDataParallel first, or use DistributedOptimizer(on_servers=True)"
        )
    group = model.process_group
    backend = backend_of(group, next(model.parameters()).device, "server_optimizer")
    if group.size() != dist.get_world_size():
        raise UnsupportedError(
            f"the model's process group has {group.size()} of {dist.get_world_size()} ranks: "
            "server_optimizer() is for models of all ranks"
        )
    if model._comm_hooks:
        raise ValueError("the model has a communication hook already: two exchange twice")
    names = _names(model, optimizer)
    wrapped = wrap_on_servers(optimizer, lambda: _BucketUpdates(names, optimizer, backend))
    model.register_comm_hook(wrapped._exchange, _send_bucket)
    return wrapped


def _names(model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> Names:
    """The parameters that DDP reduces, in the order of the optimizer."""
    ignored = set(getattr(model.module, "_ddp_params_and_buffers_to_ignore", ()))
    names = {
        parameter: name
        for name, parameter in model.module.named_parameters()
        if parameter.requires_grad and name not in ignored
    }
    own = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    lacking = [name for parameter, name in names.items() if not any(parameter is p for p in own)]
    if lacking:
        raise ValueError(
            f"the optimizer lacks parameters of the model: {', '.join(lacking[:3])}; "
            "server_optimizer() needs one optimizer for all"
        )
    if len(own) != len(names):
        raise ValueError("the optimizer has parameters that the model does not average")
    return {parameter: names[parameter] for parameter in own}


class _BucketUpdates(ServerUpdates):
    """Sends gradients when DDP has a bucket of them."""

    owner = "DistributedDataParallel"
    is_hooked = False

    def __init__(
        self, names: Names, optimizer: torch.optim.Optimizer, backend: "SumpterBackend"
    ) -> None:
        self._backend = backend
        super().__init__(names, optimizer, 1, True, global_process_set)

    def send(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Sends the gradients of a bucket; done when their parameters are new."""
        membership.current().raise_late()
        self._follow_session()
        parameters = bucket.parameters()
        if any(parameter in self._handles for parameter in parameters):
            raise AssertionError(
                f"the gradient of {self.names[parameters[0]]} was computed twice before step(): "
                "call backward() within model.no_sync(), but for the last time before step()"
            )
        if not self._handles:
            _at_end_of_backward(self._watch_gradients)
        try:
            for parameter, gradient in zip(parameters, bucket.gradients(), strict=True):
                self._send(parameter, gradient)
        except Exception:
            self._end_early()
            raise
        handles = [self._handles[parameter] for parameter in parameters]
        label = f"the update of bucket {bucket.index()}"
        work = self._backend.work_of(handles, [bucket.buffer()], label)
        return work.get_future().then(lambda done: done.value()[0])

    def take_in(self, added: Names) -> None:
        """Refused: DDP averages the parameters that needed gradients when it was made."""
        raise UnsupportedError(
            f"{', '.join(added.values())} cannot be added to the optimizer of a "
            "DistributedDataParallel model: wrap the model anew, and call server_optimizer() for it"
        )

    def finish(self) -> None:
        """Ends the step whose gradients DDP has sent."""
        self._follow_session()
        if not self._handles:
            raise ValueError(
                "step() was called, but no gradients were exchanged since the last one: call "
                "backward() outside of model.no_sync() first"
            )
        super().finish()

    def _wait(self, handle: RoundHandle) -> None:
        """As backward() has waited for it: in streams where they can, else in this thread."""
        staged = handle if isinstance(handle, DeviceRound) else None
        if staged is not None and staged.streams_wait() and self._backend.streams_wait:
            staged.wait_on_stream()
        else:
            handle.wait()

    def _watch_gradients(self) -> None:
        """Notes the gradients as DDP leaves them; what changes them later would have no effect."""
        for parameter in self._handles:
            if parameter.grad is not None:
                self._watch(parameter, parameter.grad)


def _send_bucket(
    updates: _BucketUpdates, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    return updates.send(bucket)


def _at_end_of_backward(action: Any) -> None:
    """Has autograd call `action` when this backward pass, and what DDP does after it, is done."""
    queue = torch.autograd.Variable._execution_engine.queue_callback
    # DDP has queued what it does at the end when the first callback runs, so a second one is last.
    queue(lambda: queue(action))
