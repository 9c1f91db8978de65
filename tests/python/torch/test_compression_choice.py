"""What callers may say of compression, and which tensors it is for."""

from __future__ import annotations

import gc
import logging

import numpy as np
import pytest
import torch

from sumpter import Compression, ConfigError, UnsupportedError, _native
from sumpter._core.compression.byteps import from_byteps
from sumpter._core.compression.choice import (
    BY_SETTING,
    UNCOMPRESSED,
    Choice,
    Limits,
    choose,
    gradient_codecs,
)
from sumpter._core.compression.codecs import forgetful
from sumpter.torch.training.rates import LearningRates


class Halves:
    """A compressor of a user."""

    @staticmethod
    def compress(tensor: object) -> tuple[object, None]:
        return tensor, None

    decompress = compress


@pytest.mark.parametrize(
    ("given", "codec"),
    [
        (Compression.int8, "int8"),
        ("int8", "int8"),
        (Compression.topk(k=0.01), "topk:k=0.01"),
        (Compression.topk(momentum=0.9, k=100), "topk:k=100,momentum=0.9"),
        (Compression.topk(k=5)(k=6, ef=False), "topk:k=6,ef=false"),
        (Compression.onebit(scaling=False), "onebit:scaling=false"),
        (Compression.dithering(bits=8, normalize="l2"), "dithering:bits=8,normalize=l2"),
        (Compression.fp8(format="e5m2", two_way=False), "fp8:format=e5m2,two_way=false"),
        (Compression.powersgd, "powersgd:rank=4"),
        (Compression.auto, "auto"),
        ("auto:codecs=bf16+int8", "auto"),
        (Compression.auto(codecs=["fp8", Compression.topk(k=0.01)]), "auto:codecs=fp8+topk:k=0.01"),
        (Compression.auto(codecs="int8"), "auto:codecs=int8"),
        ("off", ""),
        ({"compressor": "onebit"}, "onebit:scaling=false,ef=false"),
    ],
)
def test_codecs_texts_and_dictionaries_become_canonical(given: object, codec: str) -> None:
    assert choose(given) == Choice(codec)


def test_none_leaves_it_to_the_setting_and_a_compressor_is_the_fronts() -> None:
    for given in (Compression.none, "none", None):
        assert choose(given) is not UNCOMPRESSED
        assert choose(given) == BY_SETTING
    assert choose(Halves) == Choice("", Halves)
    assert Compression.none.compress("x") == ("x", None)
    with pytest.raises(UnsupportedError, match="int8 encodes tensors on their way"):
        Compression.int8.compress("x")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("zip", "no codec is called 'zip': give one of fp16, bf16, int8"),
        ("int8:bits=4", "codec int8 takes no argument 'bits'"),
        ("topk:k=0", "codec topk: k=0: give a part"),
        ("auto:k=0.1", "codec auto takes no argument 'k': give codecs"),
        ("auto:codecs=int8:momentum=0.9", "would have no momentum: give it to the optimizer"),
        (Compression.topk, "codec topk: k=: give a part"),
        ("int8:momentum=1", "codec int8: momentum=1: give a factor"),
        (4, "compression is 4: give a codec"),
        ({"compresor": "onebit"}, "no key 'compresor': give compressor, k, scaling"),
        ({"compressor": "int8"}, "compressor is 'int8': BytePS has onebit, topk"),
        ({"compressor": "onebit", "k": 3}, "onebit takes no k"),
        ({"compressor": "topk", "k": 3, "ef": "sum"}, "ef is 'sum': BytePS has 'vanilla'"),
        ({"compressor": "onebit", "momentum": "nesterov"}, "mu is missing"),
        ({"compressor": "randomk"}, "codec randomk: k=: give"),
        ({"k": 3}, "k without a compressor"),
        ({"fp16": "maybe"}, "fp16 is 'maybe'"),
    ],
)
def test_what_is_wrong_is_named(given: object, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        choose(given)
    assert said in str(raised.value)


def test_an_unknown_argument_is_refused_where_it_is_given() -> None:
    with pytest.raises(ConfigError, match="codec fp8 takes no argument 'formt'"):
        Compression.fp8(formt="e5m2")


def test_the_dictionary_of_byteps_means_what_it_means_there() -> None:
    given = {"compressor": "topk", "k": 32, "ef": "vanilla", "momentum": "nesterov", "mu": 0.9}
    assert from_byteps(given) == "topk:k=32,momentum=0.9"
    passed_on = {
        "byteps_compressor_type": "dithering",
        "byteps_compressor_k": "4",
        "byteps_seed": "7",
        "byteps_dithering_partition": "1",
        "byteps_dithering_normalize": "1",
    }
    codec = "dithering:k=4,partition=natural,normalize=l2,seed=7"
    assert from_byteps(passed_on) == codec
    assert from_byteps({"compressor": "onebit", "scaling": "true", "ef": "vanilla"}) == "onebit"
    assert from_byteps({"compressor": None, "fp16": True}) == "fp16"
    assert from_byteps({}) == from_byteps({"fp16": False}) == ""


def test_the_setting_is_for_large_sums_of_floats_only() -> None:
    limits = Limits("int8", 1024)

    def codec(shape: tuple[int, ...], dtype: str = "float32", sums: bool = True) -> str:
        return limits.codec_of(BY_SETTING, shape, dtype, sums, named=True)

    assert codec((256,)) == codec((2, 128)) == "int8"
    assert codec((255,)) == codec((256,), "int32") == codec((256,), sums=False) == ""
    assert Limits("", 0).codec_of(BY_SETTING, (256,), "float32", True, True) == ""
    assert Limits("powersgd:rank=4", 0).codec_of(BY_SETTING, (9, 9), "float32", True, True) == ""
    # What a caller asks for is not judged here.
    asked = Choice("topk:k=1")
    assert limits.codec_of(asked, (3,), "int32", False, True) == "topk:k=1"
    assert limits.codec_of(UNCOMPRESSED, (256,), "float32", True, True) == ""


def test_without_a_name_nothing_is_kept() -> None:
    assert forgetful("int8") == "int8:ef=false"
    assert forgetful("fp16") == "fp16"
    assert forgetful("auto") == "auto:codecs=bf16+int8:ef=false"
    assert forgetful("onebit") == "onebit:ef=false"
    assert forgetful("onebit:sum_ef=false") == "onebit:ef=false"
    assert Limits("int8", 0).codec_of(BY_SETTING, (9,), "float32", True, False) == "int8:ef=false"
    momentum = "topk:k=0.1,momentum=0.9"
    with pytest.raises(ConfigError, match="this one has no name"):
        forgetful(momentum)
    # The setting is not for a tensor that nobody knows again.
    limits = Limits(momentum, 0)
    assert limits.codec_of(BY_SETTING, (9,), "float32", True, True) == momentum
    assert limits.codec_of(BY_SETTING, (9,), "float32", True, False) == ""


def test_low_rank_is_for_gradients() -> None:
    with pytest.raises(ConfigError, match="pass it to a DistributedOptimizer"):
        Limits("", 0).codec_of(Choice("powersgd:rank=4"), (9, 9), "float32", True, True)


def test_norms_biases_and_small_gradients_are_left_alone_and_it_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    described = {
        "weight": ((64, 64), "float32"),
        "bias": ((64 * 64,), "float32"),
        "small": ((8, 8), "float32"),
        "table": ((64, 64), "int64"),
    }
    with caplog.at_level(logging.INFO, "sumpter"):
        found = gradient_codecs(Choice("int8"), Limits("", 4096), described)
    assert found == {"weight": "int8", "bias": "", "small": "", "table": ""}
    assert "compression int8: 3 of 4 gradients are left as they are" in caplog.text
    assert "bias, small, table" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    gradient_codecs(Choice("int8:momentum=0.9"), Limits("", 4096), described)
    assert caplog.records[-1].levelno == logging.WARNING
    assert "left as they are, without the codec's momentum" in caplog.text
    assert gradient_codecs(BY_SETTING, Limits("fp8", 4096), described)["weight"] == "fp8"
    assert set(gradient_codecs(BY_SETTING, Limits("", 0), described).values()) == {""}


def test_residuals_are_rescaled_when_the_learning_rate_changes() -> None:
    weight, bias = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(2))
    groups = [{"params": [weight], "lr": 0.4}, {"params": [bias], "lr": torch.tensor(0.5)}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    rates = LearningRates(optimizer)
    assert [rates.rescale(p) for p in (weight, bias, weight)] == [1.0, 1.0, 1.0]
    optimizer.param_groups[0]["lr"] = 0.1
    assert [rates.rescale(weight), rates.rescale(weight), rates.rescale(bias)] == [4.0, 1.0, 1.0]
    # Nothing is known of what a rate of 0 was to do.
    for rate, wanted in ((0.0, 1.0), (0.1, 1.0), (0.2, 0.5)):
        optimizer.param_groups[0]["lr"] = rate
        assert rates.rescale(weight) == wanted
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.param_groups[0]["lr"] = 0.1
    assert rates.rescale(weight) == 2.0
    later = torch.nn.Parameter(torch.zeros(2))
    optimizer.add_param_group({"params": [later], "lr": 0.3})
    assert rates.rescale(later) == 1.0
    del optimizer
    gc.collect()
    assert rates.rescale(weight) == 1.0


def test_factors_check_their_arrays() -> None:
    factors = _native.LowRank("powersgd:rank=2", 6, 4)
    assert (factors.left_len, factors.right_len) == (12, 8)
    matrix = np.arange(24, dtype=np.float32)
    left, right, back = (np.zeros(count, np.float32) for count in (12, 8, 24))
    factors.refresh(1, 0, right)
    assert np.count_nonzero(right) == 8
    factors.left(matrix, right, left)
    factors.orthonormalize(left)
    factors.right(matrix, left, right)
    factors.product(left, right, back)
    np.testing.assert_allclose(back, matrix, atol=1e-4)
    left.flags.writeable = False
    wrong = {
        "overlap": lambda: factors.left(back, right, back[:12]),
        "written to": lambda: factors.orthonormalize(left),
        "instead of 48": lambda: factors.orthonormalize(np.zeros(11, np.float32)),
        "contiguous": lambda: factors.left(np.zeros(48, np.float32)[::2], right, back[:12]),
        "1 to 4": lambda: _native.LowRank("powersgd:rank=5", 6, 4),
        "has no factors": lambda: _native.LowRank("int8", 6, 4),
    }
    for said, call in wrong.items():
        with pytest.raises(ConfigError, match=said):
            call()
