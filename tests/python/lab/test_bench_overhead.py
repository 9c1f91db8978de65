"""The instruments of costs: what they refuse, and that they wait for no job that has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sumpter._failure import Failure
from sumpter_lab import costs, overhead, stragglers


def test_a_job_that_does_not_start_is_a_failure() -> None:
    with pytest.raises(Failure, match="no_such=1 -- ended with code 2"):
        with overhead.job(["--set", "no_such=1"]):
            pytest.fail("it has started")


@pytest.mark.parametrize(
    "main",
    [lambda words: overhead.main(["trace", *words]), stragglers.main, costs.main],
    ids=["overhead", "stragglers", "costs"],
)
def test_a_result_that_could_not_be_written_is_refused_before_anything_runs(
    main: Callable[[Sequence[str]], None], tmp_path: Path
) -> None:
    with pytest.raises(Failure, match="the folder .* does not exist"):
        main(["-o", str(tmp_path / "missing" / "x.json")])


def test_one_pair_has_a_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    overhead.print_ratios([{"with": {"step ms": 2.0}, "without": {"step ms": 1.0}}])
    assert "+100.00%" in capsys.readouterr().out
