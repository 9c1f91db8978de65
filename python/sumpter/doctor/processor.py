"""The processor: kernels chosen for it, cores, memory nodes, quotas, and what others take of it."""

from __future__ import annotations

from sumpter import _native
from sumpter.doctor import job, limits
from sumpter.doctor.finding import Finding, note, ok, warning
from sumpter.doctor.probe import Probe

# Of a processor's time since the machine started; a few per cent are usual on shared hosts.
_STEAL_SHARE = 0.05

# What a core moves and sums each way at least, with frames of the default size over loopback.
_CORE_GBPS = 12.0

# The codecs that are measured, with usual arguments.
CODECS = (
    *("fp16", "bf16", "int8", "fp8", "onebit", "topk:k=0.01", "randomk:k=0.01"),
    *("dithering:bits=4", "powersgd:rank=4"),
)

# The flags in /proc/cpuinfo that choose between the kernels.
_FEATURES = ("avx2", "f16c", "fma", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "avx512_fp16")


def check_kernels(probe: Probe, chosen: str | None = None) -> list[Finding]:
    """Which compilation of the summation kernels runs; `chosen` stands in for the real choice."""
    level = chosen or _native.instruction_set()
    of_floats = chosen or _native.instruction_set("float32")
    flags = _cpuinfo(probe, "flags").split()
    has = " ".join(name for name in _FEATURES if name in flags)
    findings = [ok("processor", f"{_cpuinfo(probe, 'model name') or 'unknown'}; {has or '-'}")]
    whole = f"{of_floats} for sums of float32, float64, int8, uint8, int32, int64"
    halves = f"{level} for float16 and bfloat16, summed in float32"
    if level == "portable" and flags:
        findings.append(
            warning(
                "kernels",
                f"{whole}; {halves}: without AVX2 and F16C, 16-bit floats are slow",
                "in a virtual machine pass the host's processor through (QEMU: -cpu host)",
            )
        )
        return findings
    return [*findings, ok("kernels", whole), ok("kernels", halves)]


def check_codecs(_probe: Probe) -> list[Finding]:
    """How fast this machine's cores encode gradients: what decides whether a codec pays."""
    findings = []
    for codec in CODECS:
        encode, decode, add, smaller = _native.codec_rates(codec)
        said = f"{smaller:.3g} times fewer bytes; a core encodes {1e-9 * encode:.3g}, decodes "
        said += f"{1e-9 * decode:.3g}, decodes and adds {1e-9 * add:.3g} GB/s of float32 in cache"
        findings.append(ok(f"codec {codec}", said))
    return findings


def check_cores(probe: Probe) -> list[Finding]:
    """Cores, those this process may use, memory nodes and the quota of its control group."""
    there, usable = probe.cores()
    nodes = [name for name in probe.entries("/sys/devices/system/node") if name[4:].isdigit()]
    said = f"{usable} of {there} usable, {max(len(nodes), 1)} memory node(s)"
    lanes = job.number(probe.environment, "lanes")
    local = job.number(probe.environment, "local_size") or 1
    findings = []
    if lanes > usable:
        findings.append(
            warning(
                "cores",
                f"{said}, but SUMPTER_LANES is {lanes}: lanes would take turns",
                f"SUMPTER_LANES={usable}, or 0 for one lane a core",
            )
        )
    elif local > usable:
        findings.append(
            warning(
                "cores",
                f"{said}, but LOCAL_WORLD_SIZE is {local}: workers would take turns",
                "start fewer workers on this machine, or allow them more cores",
            )
        )
    else:
        findings.append(ok("cores", said))
    quota = _quota(probe)
    if quota is not None and quota < usable:
        findings.append(
            warning(
                "quota",
                f"the control group allows {quota:g} cores of the {usable} that are visible: "
                "threads made for all of them are stopped by the scheduler",
                f"raise the container's CPU limit, or OMP_NUM_THREADS={max(int(quota), 1)} "
                f"and SUMPTER_LANES={max(int(quota), 1)}",
            )
        )
    return findings


def check_link(probe: Probe) -> list[Finding]:
    """Whether the cores can fill the link: the plan gives a machine work by its link alone."""
    (_, usable), (gbps, source) = probe.cores(), limits.bandwidth(probe)
    most = usable * _CORE_GBPS
    said = f"{gbps:g} Gb/s ({source}), of which {usable} core(s) move at least {most:g}"
    if gbps <= most:
        return [ok("cores and link", said)]
    said += ": the cores are the limit here, and the plan counts the link"
    remedy = f"SUMPTER_BANDWIDTH_GBPS={most:g} here, if the links of other machines can be filled"
    return [note("cores and link", said, remedy)]


def check_steal(probe: Probe) -> list[Finding]:
    """Time that the hypervisor gave to others since this machine started."""
    words = (probe.read("/proc/stat") or "").split("\n")[0].split()
    if len(words) < 9 or words[0] != "cpu":
        return []
    ticks = [int(word) for word in words[1:9]]
    idle, steal = ticks[3] + ticks[4], ticks[7]
    wanted = sum(ticks) - idle
    share = steal / wanted if wanted else 0.0
    said = f"{share:.1%} of the time that was wanted went to other machines of the host"
    if share < _STEAL_SHARE:
        return [ok("steal", said)]
    remedy = "expect uneven steps; a dedicated host or a larger instance has no such neighbours"
    return [note("steal", said, remedy)]


def _quota(probe: Probe) -> float | None:
    """Cores that the control group allows: the least of it and those it lies in."""
    lines = (probe.read("/proc/self/cgroup") or "").splitlines()
    group = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/")
    quotas = []
    parts = [part for part in group.split("/") if part]
    for depth in range(len(parts), -1, -1):
        folder = "/".join(["/sys/fs/cgroup", *parts[:depth]])
        most, _, period = (probe.read(f"{folder}/cpu.max") or "max").partition(" ")
        if most.isdigit() and period.isdigit():
            quotas.append(int(most) / int(period))
    if not quotas:
        most = probe.read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") or ""
        period = probe.read("/sys/fs/cgroup/cpu/cpu.cfs_period_us") or ""
        if most.isdigit() and period.isdigit():
            quotas.append(int(most) / int(period))
    return min(quotas, default=None)


def _cpuinfo(probe: Probe, field: str) -> str:
    for line in (probe.read("/proc/cpuinfo") or "").splitlines():
        name, _, text = line.partition(":")
        if name.strip() == field:
            return text.strip()
    return ""
