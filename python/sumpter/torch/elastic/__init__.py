"""Training that goes on when workers die or join, in the words of Horovod's elastic API.

state = elastic.TorchState(model=model, optimizer=optimizer, epoch=0)

@elastic.run
def train(state):
    for state.epoch in range(state.epoch, EPOCHS):
        ...
        state.commit()

train(state)
"""

from sumpter._elastic.loop import run
from sumpter._elastic.state import ObjectState, State
from sumpter._errors import HostsUpdatedInterrupt
from sumpter.torch.elastic.sampler import ElasticSampler, GlobalBatchSampler
from sumpter.torch.elastic.state import TorchState

__all__ = [
    "ElasticSampler",
    "GlobalBatchSampler",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TorchState",
    "run",
]
