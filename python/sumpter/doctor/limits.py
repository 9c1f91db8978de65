"""Limits of the process and of the kernel, against what a job takes."""

from __future__ import annotations

from sumpter._words import counted
from sumpter.doctor import job
from sumpter.doctor.finding import Finding, error, note, ok, warning
from sumpter.doctor.probe import RDMA_DEVICES, Probe

MIB = 1 << 20

# What a process has open beside its connections: the interpreter and torch about a hundred, a
# data loader's workers four each, the coordinator's connection, and per lane its listeners,
# events and waker.
_DESCRIPTORS_BESIDE = 300
# What a limit should allow for: 64 workers and as many servers.
_LARGE_JOB = 64

# Two rings and their positions: what a link between two processes of a machine takes.
_LINK_BYTES = 2 * MIB + 4096
# Below this, as in a container that was given nothing else, torch's data loaders fail.
_DATA_LOADER_BYTES = 256 * MIB

# A round trip in a data centre under load; the bytes in flight are this times the bandwidth.
_ROUND_TRIP_S = 500e-6
# What a link is taken for where neither a setting nor a driver says what it is.
_USUAL_GBPS = 10.0


def check_descriptors(probe: Probe) -> list[Finding]:
    """Open files: each worker has a connection to every lane, each server one from every worker."""
    limit = probe.limit("RLIMIT_NOFILE")
    if limit is None:
        return []
    soft, hard = limit
    lanes = job.number(probe.environment, "lanes") or probe.cores()[1]
    workers = job.number(probe.environment, "world_size")
    servers = job.number(probe.environment, "servers")
    loops = job.number(probe.environment, "io_threads")
    this = _descriptors(workers, servers, lanes, loops)
    large = _descriptors(_LARGE_JOB, _LARGE_JOB, lanes, loops)
    said = f"{'unlimited' if soft == -1 else soft}"
    suggested = max(4 * this, large, 65536)
    remedy = f"ulimit -n {suggested}; for a service LimitNOFILE={suggested}"
    # Processes raise the soft limit by themselves as far as their job needs.
    if 0 <= hard < this:
        job_size = f"{counted(workers, 'worker')} and {counted(servers, 'server')}"
        said += f", but a process of a job of {job_size} takes {this}"
        remedy += f"; an administrator must raise the hard limit, which is {hard}"
        return [error("open files", said, remedy)]
    if 0 <= soft != hard:
        said += f", raised as needed to {'any number' if hard == -1 else hard}"
    said += f"; {_LARGE_JOB} workers and as many servers of {lanes} lanes take {large} a process"
    return [note("open files", said, remedy) if 0 <= hard < large else ok("open files", said)]


def _descriptors(workers: int, servers: int, lanes: int, loops: int) -> int:
    """What a process of such a job has open at most, be it a worker or a server."""
    worker = 2 * (workers - 1) + servers * lanes
    server = workers * lanes if servers else 0
    return max(worker, server) * loops + _DESCRIPTORS_BESIDE


def check_locked_memory(probe: Probe) -> list[Finding]:
    """Locked memory: only network cards that read and write memory by themselves need it."""
    limit = probe.limit("RLIMIT_MEMLOCK")
    if limit is None:
        return []
    soft, _ = limit
    said = f"{_bytes(soft)} may be locked"
    cards = [name for folder in RDMA_DEVICES for name in probe.entries(folder)]
    if soft == -1 or not cards or probe.environment.get("SUMPTER_FABRIC") == "tcp":
        return [ok("locked memory", f"{said}; TCP and shared memory lock none")]
    *_, registered = probe.networks(None, None)
    return [
        warning(
            "locked memory",
            f"{said}, and there is RDMA hardware ({', '.join(cards)}): a connection registers "
            f"{_bytes(registered)}, so that this is enough for {soft // registered} connections",
            "ulimit -l unlimited; for a service LimitMEMLOCK=infinity; for Docker "
            "--ulimit memlock=-1",
        )
    ]


def check_shared_memory(probe: Probe) -> list[Finding]:
    """Memory between processes of a machine: nameless for Sumpter, /dev/shm for data loaders."""
    findings = []
    if probe.environment.get("SUMPTER_LOCAL_LINK") == "tcp":
        findings.append(ok("shared memory", "not used, as SUMPTER_LOCAL_LINK says"))
    elif failure := probe.shared_memory_error(_LINK_BYTES):
        findings.append(
            error(
                "shared memory",
                f"a link's {_bytes(_LINK_BYTES)} cannot be had: {failure}",
                "allow memfd_create (seccomp) and more memory to the container, or "
                "SUMPTER_LOCAL_LINK=tcp",
            )
        )
    else:
        findings.append(
            ok("shared memory", f"a link takes {_bytes(_LINK_BYTES)}, not from /dev/shm")
        )
    space = probe.space("/dev/shm")
    if space is not None:
        total, free = space
        said = f"{_bytes(free)} free of {_bytes(total)}"
        if free < _DATA_LOADER_BYTES:
            remedy = "in Docker --shm-size=8g or --ipc=host; else remove old files from /dev/shm"
            said += "; Sumpter does not use it, but torch's data loaders do"
            findings.append(note("/dev/shm", said, remedy))
        else:
            findings.append(ok("/dev/shm", said))
    return findings


def check_buffers(probe: Probe) -> list[Finding]:
    """Socket buffers against the bytes in flight, and the congestion control."""
    gbps, source = bandwidth(probe)
    in_flight = int(gbps * 1e9 / 8 * _ROUND_TRIP_S)
    findings = []
    for name in ("tcp_rmem", "tcp_wmem"):
        path = f"/proc/sys/net/ipv4/{name}"
        words = (probe.read(path) or "").split()
        if len(words) != 3:
            continue
        most = int(words[2])
        said = f"grows to {_bytes(most)}; {gbps:g} Gb/s ({source}) x {_ROUND_TRIP_S * 1e3:g} ms "
        said += f"are {_bytes(in_flight)}"
        # The kernel counts its bookkeeping in: about half of a buffer holds bytes.
        if most < 2 * in_flight:
            need = max(4 * in_flight, 16 * MIB)
            remedy = f"sysctl -w net.ipv4.{name}='{words[0]} {words[1]} {need}'"
            findings.append(warning(f"net.{name}", said, remedy))
        else:
            findings.append(ok(f"net.{name}", said))
    findings += _fixed_buffers(probe)
    control = probe.read("/proc/sys/net/ipv4/tcp_congestion_control")
    if control:
        choice = probe.read("/proc/sys/net/ipv4/tcp_available_congestion_control") or control
        findings.append(ok("congestion control", f"{control} (of {', '.join(choice.split())})"))
    return findings + _idle_restart(probe, control)


def _idle_restart(probe: Probe, control: str | None) -> list[Finding]:
    """Between two iterations connections pause, often for longer than a timeout of TCP."""
    path = "/proc/sys/net/ipv4/tcp_slow_start_after_idle"
    restarts = probe.read(path)
    if restarts is None:
        return []
    # Its rate is a model of the path, not a window that has to grow again.
    if restarts == "0" or control == "bbr":
        return [ok("pauses", "connections go on after a pause as before")]
    said = "connections start slowly again after each pause, and those of a server unequally"
    remedy = "sysctl -w net.ipv4.tcp_slow_start_after_idle=0 on every machine"
    return [note("pauses", said, remedy)]


def _fixed_buffers(probe: Probe) -> list[Finding]:
    """net.core's limits are for programs that set their buffers; Sumpter lets the kernel do it."""
    limits = [probe.read(f"/proc/sys/net/core/{name}") for name in ("rmem_max", "wmem_max")]
    if None in limits:
        return []
    most = " and ".join(_bytes(int(text or 0)) for text in limits)
    return [ok("net.core", f"rmem_max and wmem_max are {most}; Sumpter leaves sizes to the kernel")]


def bandwidth(probe: Probe) -> tuple[float, str]:
    """Gb/s of this machine's link, and who says so."""
    text = probe.environment.get("SUMPTER_BANDWIDTH_GBPS", "")
    try:
        return float(text), "SUMPTER_BANDWIDTH_GBPS"
    except ValueError:
        pass
    speeds = [i.speed_mbit for i in probe.interfaces() if i.up and i.speed_mbit and not i.loopback]
    return (max(speeds) / 1000, "the fastest interface") if speeds else (_USUAL_GBPS, "assumed")


def _bytes(count: int) -> str:
    if count == -1:
        return "any amount of memory"
    for unit, size in (("GiB", 1 << 30), ("MiB", MIB), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
