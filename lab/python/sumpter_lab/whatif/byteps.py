"""BytePS' evaluation (Jiang et al., OSDI 2020, sections 7.3 and 7.4) beside the model's figures.

    python -m sumpter_lab.whatif.byteps

prints the tables of `docs/measurements/byteps-evaluation.md`, which says what is assumed and what
is fitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from sumpter.profiles import Layer, Profile, Tensor
from sumpter_lab import profiles
from sumpter_lab.whatif.cases import Case, listed, simulate

GPUS = 8
MACHINES = 32  # GPU machines of the largest run: 256 GPUs
NIC_GBPS = 100.0
# Copies over PCIe 3.0 x16: 13.1 GB/s in the paper, and between sockets over 300 Gb/s.
PCIE_GBPS = 105.0
SOCKETS_GBPS = 300.0
NVLINK_GBPS = 1200.0  # V100: six links of 25 GB/s each way
# What the paper prints for ResNet-50 with 256 GPUs. All-reduce's is what the latency is fitted to.
PAPER_BYTEPS, PAPER_ALLREDUCE = 0.975, 0.88
PAPER_GAINS = (0.19, 0.18, 0.15)
# What a V100 is taken to reach: 32 images of VGG-16 in 0.17 s (188 a second); dense layers of
# transformers 12 TFLOP/s. ResNet-50 as the published profiles have it: 250 images a second.
_MODELS = {
    "resnet50": (64, profiles.FLOPS_PER_S),
    "vgg16": (32, 17.5e12),
    "bert-large": (8, 12e12),
    "gpt2": (8, 12e12),
}
_FITTED_TO = 1e-4  # of the scaling factor
WAYS = {
    "roots: the GPUs that share no switch with the NIC, in turn": "rule",
    "root: GPU 2": "roots=gpu-2",
    "roots: GPUs 2 and 3": "roots=gpu-2+gpu-3",
    "reduce-scatter over all GPUs": "reduce-scatter",
    "roots: GPUs 0 and 2": "roots=gpu-0+gpu-2",
    "root: GPU 0, beside the NIC": "roots=gpu-0",
    "no local step": "direct",
}


def machines(workers: int, servers: int, nvlink: bool = True) -> str:
    """A machine list: GPU machines with NVLink, or without it and four GPUs below each of two
    switches; the NIC is beside the first GPU."""
    switches = 4 if nvlink else 2
    devices = [
        '{ name = "cpu-0", kind = "cpu" }',
        f'{{ name = "cpu-1", kind = "cpu", parent = "cpu-0", gbps = {SOCKETS_GBPS} }}',
    ]
    for switch in range(switches):
        cpu = f"cpu-{2 * switch // switches}"
        devices.append(_device(f"switch-{switch}", "switch", cpu))
    for gpu in range(GPUS):
        devices.append(_device(f"gpu-{gpu}", "gpu", f"switch-{gpu * switches // GPUS}"))
    names = ", ".join(f'"gpu-{gpu}"' for gpu in range(GPUS))
    lines = [
        "[[machine]]",
        'name = "trainer"',
        'role = "gpu"',
        f"count = {workers}",
        f'nics = [{{ name = "nic", gbps = {NIC_GBPS}, device = "switch-0" }}]',
        f"devices = [{', '.join(devices)}]",
    ]
    if nvlink:
        lines.append(f"nvlinks = [{{ devices = [{names}], gbps = {NVLINK_GBPS} }}]")
    if servers:
        helpers = ('name = "helper"', 'role = "cpu"', f"count = {servers}")
        lines += ["[[machine]]", *helpers, f"bandwidth_gbps = {NIC_GBPS}"]
    return "\n".join(lines) + "\n"


def _device(name: str, kind: str, parent: str) -> str:
    return f'{{ name = "{name}", kind = "{kind}", parent = "{parent}", gbps = {PCIE_GBPS} }}'


def profile(name: str) -> Profile:
    """One of the models, at what a V100 is taken to reach."""
    batch_size, flops_per_s = _MODELS[name]
    return profiles.published(name, batch_size, flops_per_s)


@cache
def round_profile() -> Profile:
    """Gradients of 1 GiB that are ready at once: a round takes what its links take."""
    tensors = tuple(Tensor(f"tensor{index}", 0, 32 << 20, "float32", 0.0) for index in range(32))
    layer = Layer("all", 1.0, 0.0)
    return Profile("round", "published", None, 1, 1.0, 0.0, (layer,), tensors, add=None)


def scaling(profile: Profile, case: Case) -> float:
    """The scaling factor: the speed of all GPUs over that of as many without communication."""
    return simulate(profile, [case], bottleneck=False)[0].scaling_factor


def round_s(case: Case) -> float:
    """Seconds of a round of 1 GiB."""
    return simulate(round_profile(), [case], bottleneck=False)[0].overhead_s


def sumpter(workers: int, servers: int, **fields: object) -> Case:
    """Workers and helpers that sum together, on NVLink machines."""
    return listed(machines(workers, servers), architecture="sumpter", **fields)


def allreduce(workers: int, hop_latency_s: float, nvlink: bool = True) -> Case:
    """A ring over all GPUs."""
    return listed(machines(workers, 0, nvlink), hop_latency_s=hop_latency_s)


@cache
def fitted_latency_s() -> float:
    """The latency of a step of the ring with which all-reduce scales as in the paper: ResNet-50
    with 256 GPUs."""
    resnet50, low, high = profile("resnet50"), 0.0, 1e-3
    while True:
        middle = (low + high) / 2
        found = scaling(resnet50, allreduce(MACHINES, middle))
        if abs(found - PAPER_ALLREDUCE) < _FITTED_TO:
            return middle
        low, high = (middle, high) if found > PAPER_ALLREDUCE else (low, middle)


def by_roots() -> Iterator[tuple[str, list[float]]]:
    """Each way of adding inside a machine: seconds of a round of 1 GiB over 8 machines without
    helpers and with 8, and the scaling factors of BERT-large in both."""
    model = profile("bert-large")
    for words, local in WAYS.items():
        cases = [sumpter(8, servers, local_reduction=local) for servers in (0, 8)]
        yield words, [*map(round_s, cases), *(scaling(model, case) for case in cases)]


def without_nvlink() -> Iterator[tuple[str, list[float]]]:
    """The same for a round, on machines without NVLink."""
    ways = {
        "the CPU adds what GPUs below a switch have added": "cpu-assisted",
        "ring over all GPUs": "reduce-scatter",
        "no local step": "direct",
    }
    for words, local in ways.items():
        texts = [machines(8, servers, nvlink=False) for servers in (0, 8)]
        fields = {"architecture": "sumpter", "local_reduction": local}
        yield words, [round_s(listed(text, **fields)) for text in texts]


def steps(helpers: int = MACHINES // 2) -> list[tuple[str, Case]]:
    """From a parameter server to BytePS, one step after another, at 256 GPUs."""
    spread = {"local_reduction": "reduce-scatter"}
    text = machines(MACHINES, helpers)
    return [
        ("parameter server", listed(text, architecture="ps", update_bytes_per_s=2e9, **spread)),
        ("workers update", listed(text, architecture="ps", **spread)),
        ("GPU machines sum too", listed(text, architecture="sumpter", **spread)),
        ("roots away from the NIC", listed(text, architecture="sumpter")),
    ]


def scalability(
    name: str, counts: Sequence[int] = (1, 2, 4, 8, 16, MACHINES)
) -> Iterator[tuple[int, list[float]]]:
    """By numbers of machines: GPUs, and the scaling factors of all-reduce without and with latency,
    and of Sumpter without helpers and with as many as GPU machines."""
    model, latency_s = profile(name), fitted_latency_s()
    for workers in counts:
        cases = [
            allreduce(workers, 0.0),
            allreduce(workers, latency_s),
            sumpter(workers, 0),
            sumpter(workers, workers),
        ]
        yield GPUS * workers, [scaling(model, case) for case in cases]


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _rounds() -> str:
    rows = list(by_roots())
    best = rows[0][1][:2]

    def cells(words: str, found: list[float]) -> list[str]:
        times = [
            f"{1e3 * s:.1f} ({s / least:.2f})" for s, least in zip(found[:2], best[:2], strict=True)
        ]
        return [words, *times, *(f"{factor:.3f}" for factor in found[2:])]

    head = ["1 GiB, 8 NVLink machines", "k = 0 (ms)", "k = 8 (ms)", "bert-large, k = 0", "k = 8"]
    return _table(head, (cells(words, found) for words, found in rows))


def _without_nvlink() -> str:
    head = ["1 GiB, 8 machines without NVLink", "k = 0 (ms)", "k = 8 (ms)"]
    rows = without_nvlink()
    return _table(head, ([words, *(f"{1e3 * s:.1f}" for s in found)] for words, found in rows))


def _steps() -> str:
    models = [round_profile(), *map(profile, _MODELS)]
    before: list[float] = []
    rows = []
    for words, case in steps():
        times = [round_s(case)]
        times += [1 / scaling(model, case) for model in models[1:]]
        gains = [f"{100 * (was / now - 1):+.1f} %" for was, now in zip(before, times, strict=False)]
        rows.append([words, *(gains or [""] * len(times))])
        before = times
    head = ["256 GPUs, 16 CPU machines", "links only", *_MODELS]
    return _table(head, iter(rows))


def _scalability(name: str) -> str:
    head = [f"GPUs, {name}", "ring", "ring with latency", "Sumpter, k = 0", "Sumpter, k = n"]
    rows = scalability(name)
    return _table(head, ([str(n), *(f"{100 * f:.1f} %" for f in found)] for n, found in rows))


def main() -> None:
    """Prints all tables."""
    print(_rounds(), _without_nvlink(), _steps(), sep="\n\n")
    print(f"\nfitted latency of a step: {1e6 * fitted_latency_s():.2f} us\n")
    print(*(_scalability(name) for name in _MODELS), sep="\n\n")


if __name__ == "__main__":
    main()
