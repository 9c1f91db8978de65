"""Which rank trains on which samples, when ranks come and go in the middle of an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any

import torch
from torch.utils.data import Sampler

from sumpter._core import membership


class ElasticSampler(Sampler[int]):
    """Distributes the samples not yet processed in this epoch to the ranks.

    As in Horovod the batch of a rank stays the same, so that the batch over all ranks follows
    their number. After a change of workers each sample is trained on at least once an epoch: what
    a worker that died had processed since it joined comes again. Where ranks would get unequal
    numbers of samples, some come twice. Needs init().
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self._own: list[int] = []
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, whose order follows from its number. Call it at an epoch's end."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Notes that this rank has processed its batch number `batch_idx` since the last reset."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Sequence[int]) -> None:
        """Notes that these samples have been processed."""
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The samples of this rank's batch number `batch_idx` since the last reset."""
        return self._own[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and what this rank knows to be processed in it."""
        return {"epoch": self.epoch, "processed_indices": set(self.processed_indices)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a state."""
        self.epoch = state_dict["epoch"]
        self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    @staticmethod
    def merge(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """One state of those of all ranks; rank 0's epoch counts."""
        epoch = states[0]["epoch"]
        known = [state["processed_indices"] for state in states if state["epoch"] == epoch]
        return {"epoch": epoch, "processed_indices": set().union(*known)}

    def reset(self) -> None:
        """Deals the rest of the epoch out to the ranks that are there now."""
        session = membership.current()
        self.rank, self.num_replicas = session.rank, session.world_size
        order = _order(self.dataset, self.shuffle, self.seed, self.epoch)
        rest = [index for index in order if index not in self.processed_indices]
        self.num_samples = -(-len(rest) // self.num_replicas)
        padded = [rest[i % len(rest)] for i in range(self.num_samples * self.num_replicas)]
        self._own = padded[self.rank :: self.num_replicas]

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._own))

    def __len__(self) -> int:
        return self.num_samples


class GlobalBatchSampler(Sampler[list[int]]):
    """Keeps the batch over all ranks the same, whatever their number; a `batch_sampler`.

    Step i of an epoch trains on the same `global_batch` samples with any number of workers: each
    rank gets its share, and the first ranks get one more where it does not divide. So learning
    rate and schedule stay as they are, and nothing is lost or repeated when a worker dies: the
    place in the epoch is one number, the same on all ranks. Samples that fill no batch at an
    epoch's end are left out. Needs init(); ValueError if the batch has fewer samples than there are
    ranks or more than the data set has.

    A rank's mean loss counts by its share: multiply it by `weight`, and the average of the
    gradients over the ranks is the gradient of the mean over the whole batch.
    """

    def __init__(
        self, dataset: Sized, global_batch: int, shuffle: bool = True, seed: int = 0
    ) -> None:
        if not 1 <= global_batch <= len(dataset):
            raise ValueError(
                f"global_batch is {global_batch}: it must be from 1 to the {len(dataset)} samples"
            )
        self.dataset = dataset
        self.global_batch = global_batch
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.position = 0  # in global batches
        self._begun_at = 0
        self.reset()

    @property
    def weight(self) -> float:
        """What a mean over this rank's share of a batch counts in the average over the ranks."""
        share = len(range(self.rank, self.global_batch, self.num_replicas))
        return share * self.num_replicas / self.global_batch

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, whose order follows from its number. Call it at an epoch's end."""
        self.epoch, self.position = epoch, 0

    def record_batch(self, batch_idx: int, batch_size: int | None = None) -> None:
        """Notes that batch number `batch_idx` since the last iteration's start has been processed.

        `batch_size` is for the likeness to ElasticSampler and changes nothing.
        """
        self.position = self._begun_at + batch_idx + 1

    def state_dict(self) -> dict[str, Any]:
        """The epoch and the number of batches processed in it."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a state."""
        self.epoch, self.position = state_dict["epoch"], state_dict["position"]

    def reset(self) -> None:
        """Shares the batches out among the ranks that are there now."""
        session = membership.current()
        self.rank, self.num_replicas = session.rank, session.world_size
        if self.global_batch < self.num_replicas:
            raise ValueError(
                f"global_batch is {self.global_batch} and there are {self.num_replicas} ranks: "
                "each needs a sample; set max_workers"
            )

    def __iter__(self) -> Iterator[list[int]]:
        order = _order(self.dataset, self.shuffle, self.seed, self.epoch)
        self._begun_at = self.position
        for batch in range(self.position, len(order) // self.global_batch):
            start = batch * self.global_batch
            yield order[start + self.rank : start + self.global_batch : self.num_replicas]

    def __len__(self) -> int:
        return len(self.dataset) // self.global_batch - self.position


def _order(dataset: Sized, shuffle: bool, seed: int, epoch: int) -> list[int]:
    """All samples, in an order that is the same on all ranks."""
    if not shuffle:
        return list(range(len(dataset)))
    # Other seeds give other orders in every epoch, not the same ones some epochs later.
    generator = torch.Generator().manual_seed((seed << 32) + epoch)
    return torch.randperm(len(dataset), generator=generator).tolist()
