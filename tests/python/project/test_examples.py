"""The examples do what they promise, started as a user starts them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs import Job
from sumpter.launch.attendant import free_port

ROOT = Path(__file__).resolve().parents[3]
# Only so that a hang fails instead of blocking; no test's meaning depends on it.
HANG_S = 900

# Standalone: torchrun takes a free port, not a fixed one.
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def sumpter_run(*options: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "sumpter", "run", *options, "--", sys.executable)


def run(*command: str) -> str:
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_S,
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@pytest.mark.parametrize(
    "command",
    [
        (*TORCHRUN, "examples/digits.py"),
        (*TORCHRUN, "examples/digits_horovod.py"),
        (sys.executable, "examples/digits_horovod.py"),
        (*sumpter_run("-n", "2", "-s", "1"), "examples/server_optimizer_digits.py"),
        (*sumpter_run("-n", "2", "-s", "1"), "examples/diloco_digits.py"),
    ],
    ids=[
        "ddp-torchrun",
        "horovod-torchrun",
        "horovod-alone",
        "optimizer-on-server",
        "diloco",
    ],
)
def test_digits_reaches_its_accuracy(command: tuple[str, ...]) -> None:
    expect_accuracy(run(*command))


@pytest.mark.parametrize(
    ("servers", "command"),
    [
        (0, ("digits_horovod.py", "--overlap")),
        (0, ("digits_horovod.py", "--compression", "int8")),
        (1, ("server_optimizer_digits.py", "--clip=1")),
        (0, ("diloco_digits.py", "--local-sgd")),
    ],
    ids=["horovod-overlap", "horovod-compressed", "optimizer-on-server-clipped", "local-sgd"],
)
def test_an_option_of_an_example_keeps_its_accuracy(
    make_job: Callable[..., Job], servers: int, command: tuple[str, ...]
) -> None:
    """Another test starts each of these as users do; here torch is imported already."""
    expect_accuracy(run_in_job(make_job(2, servers), *command))


@pytest.mark.parametrize("staleness", ["none", "4"])
def test_digits_are_learned_asynchronously(make_job: Callable[..., Job], staleness: str) -> None:
    output = run_in_job(make_job(3, 1), "asynchronous_digits.py", f"--staleness={staleness}")
    # Its ranks do not wait for each other, so no two runs end alike.
    expect_accuracy(output, least=94.0)
    assert "steps by rank: [900, 900, 225]" in output


def test_the_elastic_example_is_run_by_its_page() -> None:
    """The example fails below its accuracy, and test_commands.py runs what the page prints."""
    page = (ROOT / "docs" / "user" / "elastic.md").read_text()
    command = "sumpter run -n 3 --min-workers 2 -- python examples/elastic_digits.py --kill"
    assert f"```sh\n{command}\n```" in page
    assert "if accuracy < TARGET" in (ROOT / "examples" / "elastic_digits.py").read_text()


def run_in_job(job: Job, example: str, *options: str) -> str:
    """Runs an example on all ranks of a job; what they wrote."""
    job.start(str(ROOT / "examples" / example), *options).finish()
    return "".join(job.output(rank) for rank in range(job.ranks))


def test_digits_with_servers_reaches_its_accuracy(make_job: Callable[..., Job]) -> None:
    job, port = make_job(4, 2), free_port()
    for rank in range(4):
        example = str(ROOT / "examples" / "digits.py")
        job.start_rank(rank, example, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    job.finish()
    expect_accuracy("".join(job.output(rank) for rank in range(4)))


def test_digits_are_learned_by_jax() -> None:
    pytest.importorskip("jax", reason="jax is not installed: pip install 'sumpter[jax]'")
    expect_accuracy(run(*sumpter_run("-n", "2", "-s", "1"), "examples/jax_digits.py"))


def expect_accuracy(output: str, least: float = 97.0) -> None:
    said = re.findall(r"accuracy on 360 held-out digits: ([\d.]+)%", output)
    assert len(said) == 1, output
    assert float(said[0]) >= least


@pytest.mark.parametrize("launcher", [sumpter_run("-n", "2", "-s", "1"), (sys.executable,)])
def test_a_linear_model_learns_by_the_service(launcher: tuple[str, ...]) -> None:
    expect_accuracy(run(*launcher, "examples/service_logistic.py"), least=95.0)


def test_tiny_gpt_learns_and_writes() -> None:
    expect_language(run(*sumpter_run("-n", "2", "-s", "1"), "examples/tiny_gpt.py"))


@pytest.mark.parametrize("model", [(), ("--linen",)], ids=["nnx", "linen"])
def test_a_language_model_of_flax_learns_and_writes(model: tuple[str, ...]) -> None:
    for package in ("jax", "optax", "flax"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install {package}")
    expect_language(run(*sumpter_run("-n", "2", "-s", "1"), "examples/jax_lm.py", *model))


def expect_language(output: str) -> None:
    losses = re.search(r"loss per character: ([\d.]+) at first, ([\d.]+) at last", output)
    assert losses is not None, output
    assert float(losses[2]) < 0.7 * float(losses[1])
    assert "def read(self, " in output


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_fit_on_three_screens(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 150
