"""Optimizer state is put together from the shares of the ranks that are left."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sumpter.torch.training.shares import Parts, StateShare, assemble, whole_state

SLOTS = ("exp_avg", "exp_avg_sq")


def stretch(start: int, stop: int, dtype: type = np.float32) -> Parts:
    """Parts of which element i is i, i + 100 and i + 200."""
    numbers = np.arange(start, stop, dtype=dtype)
    return [(start, stop, [(numbers + 100 * part).tobytes() for part in range(3)])]


@pytest.mark.parametrize(
    ("dtype", "master"),
    [(torch.float32, np.float32), (torch.bfloat16, np.float32), (torch.float64, np.float64)],
)
def test_stretches_make_the_whole_in_the_type_that_they_are_kept_in(
    dtype: torch.dtype, master: type
) -> None:
    parameter = torch.zeros(3, 4, dtype=dtype)
    everyone = [stretch(0, 5, master), stretch(4, 12, master), []]
    state = whole_state(parameter, SLOTS, 7, everyone)
    assert state["step"].item() == 7
    assert state["exp_avg"].shape == (3, 4)
    assert state["exp_avg"].flatten().tolist() == [100.0 + i for i in range(12)]
    assert state["exp_avg_sq"].flatten().tolist() == [200.0 + i for i in range(12)]


def test_what_only_dead_ranks_had_is_an_error_that_names_the_parameter() -> None:
    parameter = torch.nn.Parameter(torch.zeros(12))
    share = StateShare({"layer.weight": 3}, {"layer.weight": stretch(2, 9)}, {})
    with pytest.raises(ValueError, match=r"layer\.weight: 5 of 12 elements .* checkpoint"):
        assemble({parameter: "layer.weight"}, {parameter: SLOTS}, [share])


def test_what_the_servers_do_not_have_yet_comes_from_the_rank_that_loaded_it() -> None:
    parameters = {torch.nn.Parameter(torch.zeros(12)): name for name in ("a", "b", "c")}
    loaded = {"step": torch.tensor(4.0), "exp_avg": torch.ones(12)}
    shares = [
        StateShare({}, {}, {"b": loaded}),
        StateShare({"a": 3}, {"a": stretch(0, 12)}, {}),
        StateShare({}, {}, {}),
    ]
    state = assemble(parameters, dict.fromkeys(parameters, SLOTS), shares)
    found = {parameters[parameter]: one["step"].item() for parameter, one in state.items()}
    assert found == {"a": 3, "b": 4}
    assert [share.mark for share in shares] == [4, 3, 0]
