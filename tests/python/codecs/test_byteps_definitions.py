"""BytePS' codecs are what BytePS defines: the definitions, and jobs that compute them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import byteps_codecs as byteps
from byteps_codecs import Draw
from jobs import Job


@pytest.mark.parametrize(("ranks", "servers"), [(2, 0), (3, 1)])
def test_rounds_have_the_bytes_of_the_definitions(
    make_job: Callable[..., Job], ranks: int, servers: int
) -> None:
    # Sums depend on the order only where there are more than two addends.
    job = make_job(ranks, servers, deterministic=True, partition_bytes="16KiB")
    job.start("byteps_rounds.py").finish()


def test_philox_gives_the_known_answers() -> None:
    """From `kat_vectors` of Random123, which has the generator's authors' answers."""
    ones = 2**32 - 1
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    for counter, key, answer in (
        ((0,) * 4, (0, 0), "5f6fb709 0d893f64 4f121f81 4f730a48"),
        ((ones,) * 4, (ones, ones), "5207ddc2 45165e59 4d8ee751 8c52f662"),
        (*pi, "4dfccaba 190a87f0 c47362ba b6b5242a"),
    ):
        assert " ".join(f"{int(word[0]):08x}" for word in byteps.philox(counter, key)) == answer


def test_the_definitions_are_unbiased_or_keep_the_largest() -> None:
    x = np.random.default_rng(1).standard_normal(byteps.BLOCK).astype(np.float32)
    for codec in (
        byteps.dithering(4, "natural", "l2"),
        byteps.dithering(7, "linear"),
        byteps.randomk(0.25, scaling=True),
    ):
        mean = np.mean([byteps.decoded(codec, Draw(9, 0, n, 0), x) for n in range(400)], axis=0)
        assert abs(np.dot(mean, x) / np.dot(x, x) - 1) < 0.05
    draw = Draw(0, 0, 0, 0)
    kept = byteps.decoded(byteps.topk(3), draw, x)
    assert set(np.flatnonzero(kept)) == set(np.argsort(np.abs(x))[-3:])
    signs = byteps.decoded(byteps.onebit(scaling=True), draw, x)
    assert (np.sign(signs) == np.sign(x)).all()
    assert np.unique(np.abs(signs)) == pytest.approx(np.abs(x).mean())
