"""The optimizer on the servers: gradients go there, and new parameters come back."""

import torch

from sumpter._core import membership
from sumpter._core.handles import RoundHandle
from sumpter._core.process_sets import ProcessSet
from sumpter._errors import UnsupportedError
from sumpter.torch.training.gradients import Names, PassCounter
from sumpter.torch.training.variables import Variables, bring_together


class ServerUpdates(PassCounter):
    """Sends each gradient as soon as it is complete; the new parameter comes into its memory."""

    def __init__(
        self,
        names: Names,
        optimizer: torch.optim.Optimizer,
        passes: int,
        average: bool,
        process_set: ProcessSet,
    ) -> None:
        if not process_set.included():
            raise UnsupportedError(
                f"rank {membership.rank()} is outside {process_set}, whose servers update its "
                "parameters: give this rank a plain optimizer"
            )
        self._variables = Variables(names, optimizer, average, process_set)
        self._handles: dict[torch.nn.Parameter, RoundHandle] = {}
        bring_together([(name, p.data) for p, name in names.items()], process_set)
        super().__init__(names, passes)

    @property
    def pending(self) -> bool:
        """Whether gradients are in flight."""
        self._follow_session()
        return bool(self._handles)

    def complete(self, parameter: torch.nn.Parameter) -> None:
        """Sends the gradient that backward has made."""
        self._start(parameter)

    def finish(self) -> None:
        """Sends what has not been sent, zeros where backward made none, and waits for it all."""
        self._follow_session()
        for parameter in self.names:
            if parameter not in self._handles:
                self._start(parameter)
        handles, self._handles = self._handles, {}
        self.restart()
        changed = []
        for parameter, handle in handles.items():
            handle.wait()
            variable = self._variables[parameter]
            if variable.end(self._variables.rule, self._variables.groups[parameter]):
                changed.append(self.names[parameter])
        if changed:
            raise ValueError(
                f"the gradient or the hyper-parameters of {', '.join(changed[:3])} were changed "
                "between backward() and step(): the servers have updated by what they were when "
                "backward() was done; change them before it, or run the optimizer in the workers"
            )

    def abandon(self) -> None:
        """Forgets what is in flight, and the variables of a job that has been left."""
        self._handles = {}
        super().abandon()

    def gather(self) -> dict[torch.nn.Parameter, dict[str, torch.Tensor]]:
        """The state of each parameter, as torch's optimizer has it; every rank must call this."""
        return self._variables.gather()

    def load(self, optimizer: torch.optim.Optimizer) -> None:
        """Has the servers go on from the state that the optimizer has loaded."""
        self._variables.load(optimizer)

    def _start(self, parameter: torch.nn.Parameter) -> None:
        gradient = parameter.grad
        if gradient is None:
            gradient = parameter.grad = torch.zeros_like(parameter)
        if gradient.layout != torch.strided:
            raise UnsupportedError(
                f"the gradient of {self.names[parameter]} is sparse: servers update dense "
                "parameters, so run this optimizer in the workers"
            )
        variable = self._variables[parameter]
        self._handles[parameter] = variable.begin(
            gradient,
            self._variables.rule,
            self._variables.groups[parameter],
            self.names[parameter],
        )

    def _follow_session(self) -> None:
        super()._follow_session()
        self._variables.follow_session()
