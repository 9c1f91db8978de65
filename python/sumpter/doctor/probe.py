"""What the checks ask of the system.

The checks themselves never touch it: they get a probe, so that a test can give them a machine
that does not exist. Every answer is plain data; what cannot be found out is None or empty.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import importlib.metadata
import ipaddress
import json
import os
import platform
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from sumpter import _native

_SIOCGIFCONF = 0x8912
# struct ifreq: the name, then the kind, port and number of an address, then what fills a union.
_IFREQ = struct.Struct("16sHH4s16x")
_MOST_ADDRESSES = 256

# Where Linux lists devices that may place bytes: InfiniBand, RoCE, EFA, Omni-Path; Slingshot.
RDMA_DEVICES = ("/sys/class/infiniband", "/sys/class/cxi")

# Long enough for a first import of torch from a cold disk.
_TORCH_S = 120

# The beginnings of variables by which launchers give a process its part in a job.
_OF_A_JOB = (
    *("SUMPTER_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "GROUP_", "ROLE_"),
    *("HOROVOD_", "BYTEPS_", "DMLC_", "OMPI_", "PMI_", "PMIX_", "SLURM_"),
)


@dataclass(frozen=True)
class Interface:
    """A network interface; `speed_mbit` is None where the driver does not report it."""

    name: str
    addresses: tuple[str, ...]
    up: bool
    speed_mbit: int | None = None

    @property
    def loopback(self) -> bool:
        return any(ipaddress.ip_address(text).is_loopback for text in self.addresses)


@dataclass(frozen=True)
class Installed:
    """A distribution of some name on Python's path, and the folder that its modules are in: an
    editable installation's is elsewhere."""

    version: str
    folder: str


class Probe:
    """The machine and process that run this."""

    def __init__(self, coordinator: str | None = None) -> None:
        self.environment: Mapping[str, str] = dict(os.environ)
        if coordinator is not None:
            self.environment = {**self.environment, "SUMPTER_COORDINATOR": coordinator}

    # Python and what is installed.

    @property
    def executable(self) -> str:
        return sys.executable

    def python_version(self) -> str:
        return platform.python_version()

    def system(self) -> tuple[str, str]:
        """The kernel and the C library."""
        name, version = platform.libc_ver()
        uname = platform.uname()
        return f"{uname.system} {uname.release} {uname.machine}", f"{name} {version}".strip()

    def installed(self, distribution: str) -> list[Installed]:
        """Every copy of a distribution that is on the path, the one that is imported first."""
        found: dict[str, Installed] = {}
        for each in importlib.metadata.distributions(name=distribution):
            origin = json.loads(each.read_text("direct_url.json") or "{}")
            if origin.get("dir_info", {}).get("editable"):
                folder = url2pathname(urlsplit(origin["url"]).path)
            else:
                folder = str(Path(str(each.locate_file(""))).resolve())
            found.setdefault(folder, Installed(each.version, folder))
        return list(found.values())

    def package_folder(self) -> str:
        """Where the running copy of Sumpter lies."""
        return str(Path(__file__).resolve().parents[1])

    def entry_points(self, group: str, name: str) -> list[str]:
        """What entry points of this group and name stand for."""
        return [e.value for e in importlib.metadata.entry_points(group=group, name=name)]

    def torch(self) -> dict[str, Any] | None:
        """What torch says of itself in a process of its own; None where it is not installed.

        With the key "error" alone where it is installed but does not work. In another process
        because the import takes seconds and a broken one can end its process.
        """
        if not self.installed("torch"):
            return None
        command = [self.executable, "-m", "sumpter.doctor.torch_report"]
        try:
            done = subprocess.run(
                command,
                env=self.child_environment(),
                capture_output=True,
                text=True,
                timeout=_TORCH_S,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"importing it took more than {_TORCH_S} s"}
        if done.returncode != 0:
            words = done.stderr.strip().splitlines()
            return {"error": words[-1] if words else f"exit code {done.returncode}"}
        return json.loads(done.stdout.splitlines()[-1])

    def child_environment(self) -> dict[str, str]:
        """The environment of a process that belongs to no job and imports this copy."""
        own = {k: v for k, v in self.environment.items() if not k.startswith(_OF_A_JOB)}
        return own | {"PYTHONPATH": ":".join(path for path in sys.path if path)}

    # Files of the kernel, and limits.

    def read(self, path: str) -> str | None:
        """The text of a small file without the last line's end, or None."""
        try:
            return Path(path).read_text(errors="replace").rstrip("\n")
        except OSError:
            return None

    def entries(self, folder: str) -> list[str]:
        """The names in a folder; none if there is no such folder."""
        try:
            return sorted(os.listdir(folder))
        except OSError:
            return []

    def networks(
        self, provider: str | None, device: str | None
    ) -> tuple[str | None, list[tuple[str, str, int | None, bool]], str | None, int]:
        """What libfabric has of a provider and a device: see _native.fabric_networks."""
        return _native.fabric_networks(provider, device)

    def device_memory_networks(self) -> list[str]:
        """The providers of libfabric's that say that they can register a GPU's memory."""
        return _native.fabric_device_memory()

    def limit(self, name: str) -> tuple[int, int] | None:
        """The soft and hard limit of this name of module resource; -1 means unlimited."""
        return resource.getrlimit(getattr(resource, name))

    def space(self, path: str) -> tuple[int, int] | None:
        """Total and free bytes of the file system that holds `path`."""
        try:
            found = os.statvfs(path)
        except OSError:
            return None
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def shared_memory_error(self, size: int) -> str | None:
        """Why memory without a name, as Sumpter's links use it, cannot be had; None if it can."""
        try:
            descriptor = os.memfd_create("sumpter-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as failure:
            return str(failure)
        try:
            os.ftruncate(descriptor, size)
            os.posix_fallocate(descriptor, 0, size)
        except OSError as failure:
            return str(failure)
        finally:
            os.close(descriptor)
        return None

    def cores(self) -> tuple[int, int]:
        """Processors of the machine, and those that this process may run on."""
        return os.cpu_count() or 1, len(os.sched_getaffinity(0))

    def library_error(self, name: str) -> str | None:
        """Why a shared library cannot be loaded; None if it can."""
        try:
            ctypes.CDLL(name)
        except OSError as failure:
            return str(failure)
        return None

    # The network.

    def host_name(self) -> str:
        return socket.gethostname()

    def resolve(self, host: str) -> list[str]:
        """The addresses of a host, IPv4 first; none if it is unknown."""
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError:
            return []
        return list(dict.fromkeys(str(row[4][0]) for row in sorted(found, key=lambda r: r[0])))

    def own_address(self, address: str) -> str | None:
        """The address of this machine on its way to another; None where there is no way."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        # Connecting a datagram socket sends nothing; it only asks the routing table.
        with socket.socket(family, socket.SOCK_DGRAM) as asking:
            try:
                asking.connect((address, 9))
            except OSError:
                return None
            return asking.getsockname()[0]

    def interfaces(self) -> list[Interface]:
        addresses = _addresses_v4()
        for line in (self.read("/proc/net/if_inet6") or "").splitlines():
            digits, *_, name = line.split()
            addresses.setdefault(name, []).append(str(ipaddress.ip_address(bytes.fromhex(digits))))
        return [
            Interface(name, tuple(addresses.get(name, ())), self._is_up(name), self._speed(name))
            for _, name in socket.if_nameindex()
        ]

    def _is_up(self, name: str) -> bool:
        flags = self.read(f"/sys/class/net/{name}/flags")
        return flags is None or bool(int(flags, 16) & 1)

    def _speed(self, name: str) -> int | None:
        text = self.read(f"/sys/class/net/{name}/speed")
        return int(text) if text and text.isdigit() and int(text) > 0 else None

    def port_in_use(self, port: int) -> bool:
        """Whether listening on a TCP port fails because a process does already."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trying:
            # As Sumpter listens: connections that ended a moment ago do not matter.
            trying.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trying.bind(("", port))
                trying.listen(1)
            except OSError as failure:
                return failure.errno == errno.EADDRINUSE
        return False

    def listener(self, port: int) -> str | None:
        """Who listens on a TCP port, as "name (pid N)"; None where that cannot be seen."""
        inodes = set()
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            for line in (self.read(table) or "").splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
        for pid in filter(str.isdigit, self.entries("/proc")) if inodes else ():
            for descriptor in self.entries(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{descriptor}") in inodes:
                        return f"{self.read(f'/proc/{pid}/comm')} (pid {pid})"
        return None

    def connect_error(self, host: str, port: int, timeout_s: float) -> OSError | None:
        """Why a TCP connection fails; None if it does not."""
        try:
            socket.create_connection((host, port), timeout_s).close()
        except OSError as failure:
            return failure
        return None


def _addresses_v4() -> dict[str, list[str]]:
    """IPv4 addresses by interface."""
    space = ctypes.create_string_buffer(_MOST_ADDRESSES * _IFREQ.size)
    request = struct.pack("iP", len(space), ctypes.addressof(space))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        answer = fcntl.ioctl(asking, _SIOCGIFCONF, request)
    used, _ = struct.unpack("iP", answer)
    found: dict[str, list[str]] = {}
    for name, _, _, number in _IFREQ.iter_unpack(space.raw[:used]):
        # A second address has the interface's name with a label behind a colon.
        interface = name.split(b"\0")[0].decode().split(":")[0]
        found.setdefault(interface, []).append(socket.inet_ntoa(number))
    return found
