"""What figures between machines mean. Pure functions: each takes figures and returns findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from sumpter.doctor.finding import Finding, error, note, ok, warning
from sumpter.doctor.pairs.agent import REFUSED, SILENT, STRANGER

# A difference in the first stops a job; in the others it is one to know of.
_WIRE = "wire format"
_COMPATIBLE = ("python", "numpy")
# Where figures below a part of what they are compared with are worth a warning.
_SLOW = 0.5
# Both ways at once are expected to carry clearly more than one way alone.
_DUPLEX = 1.1
# From here on timestamps of logs mislead.
_CLOCK_S = 1.0
# Issuers of certificates date them back by minutes, and they are not renewed in the last hour.
_CERTIFICATE_S = 3600.0
# Above any network inside a data centre.
_FAR_S = 5e-3


@dataclass(frozen=True)
class Machine:
    """What the agent of a machine says of it."""

    name: str
    address: str
    interface: str
    mtu: int
    speed_mbit: int  # of the interface, or as the settings state it; 0 where unknown
    ports: tuple[int, ...]
    busy: tuple[int, ...]
    fixed: bool  # the ports are SUMPTER_PORT's
    udp: int
    tls: bool
    cores: int
    versions: Mapping[str, str]

    @classmethod
    def of(cls, name: str, said: Mapping[str, Any]) -> Machine:
        known = {key: said[key] for key in cls.__dataclass_fields__ if key != "name"}
        return cls(name, **known | {"ports": tuple(said["ports"]), "busy": tuple(said["busy"])})


@dataclass(frozen=True, eq=False)
class Way:
    """What was measured from one machine to another."""

    name: str  # "there" from the first of a pair, or "back"
    source: Machine
    target: Machine
    figures: Mapping[str, Any]

    @property
    def title(self) -> str:
        return f"{self.source.name} to {self.target.name}"


@dataclass(frozen=True, eq=False)
class Pair:
    """Both ways between two machines; the speeds were measured by one of them."""

    there: Way
    back: Way
    findings: list[Finding] = field(default_factory=list)

    @property
    def title(self) -> str:
        return f"{self.there.source.name} and {self.there.target.name}"

    def gbps(self) -> tuple[float, float] | None:
        """There and back; None where nothing was measured."""
        for way, names in ((self.there, ("to", "from")), (self.back, ("from", "to"))):
            if speeds := way.figures.get("speeds"):
                return speeds[names[0]], speeds[names[1]]
        return None

    def clock(self) -> tuple[float, float] | None:
        """How far the second's clock is ahead, and the round trip, in seconds."""
        for way, sign in ((self.there, 1), (self.back, -1)):
            if known := way.figures.get("clock"):
                return sign * known["offset_s"], known["round_trip_s"]
        return None


def judge(pair: Pair) -> list[Finding]:
    """All findings of a pair but those that follow from other pairs."""
    findings = []
    for way in (pair.there, pair.back):
        findings += check_ports(way)
    findings += check_mtu(pair)
    findings += check_clock(pair)
    findings += check_speed(pair)
    return findings


def check_ports(way: Way) -> list[Finding]:
    """Whether the target's ports can be reached, and if not, who says no."""
    if problem := way.figures.get("problem"):
        remedy = f"check that both machines are idle; `sumpter doctor` on {way.source.name} says "
        remedy += "more of it"
        found = [error(f"way {way.name}", f"{way.title}: {problem}", remedy)]
        if "ports" not in way.figures:
            return found
        return found + _reached(way)
    return _reached(way)


def _reached(way: Way) -> list[Finding]:
    closed: dict[tuple[str, str], list[int]] = {}
    for port, why, said in way.figures["ports"]:
        closed.setdefault((why, said), []).append(port)
    findings = []
    for (why, said), ports in closed.items():
        numbers = _numbers(ports)
        where = f"{way.title} ({way.target.address}), {numbers}"
        if not why:
            free = "" if way.target.fixed else " (any free one)"
            findings.append(ok(f"ports {way.name}", f"{where}{free}: a connection opens"))
            continue
        findings.append(error(f"ports {way.name}", *_closed(way, why, said, where)))
    return findings


def _closed(way: Way, why: str, said: str, where: str) -> tuple[str, str]:
    target = way.target
    allow = f"allow TCP from {way.source.address} to {target.name}"
    if not target.fixed:
        allow += "; where only some ports may be open, SUMPTER_PORT fixes those of the lanes"
    if why == REFUSED:
        return (
            f"{where}: refused, though a process listens there: a firewall rejects it, or "
            f"{target.address} is another machine seen from {way.source.name}",
            f"{allow}; `ip route get {target.address}` on {way.source.name} shows the way",
        )
    if why == SILENT:
        return (
            f"{where}: no answer within the limit: a firewall drops TCP to it, or the address "
            f"does not lead to {target.name}",
            f"{allow}: nftables or iptables on {target.name}, security groups of a cloud",
        )
    if why == STRANGER:
        return (
            f"{where}: another program answers ({said})",
            f"take proxies out of the way, and check that no other machine has the address "
            f"{target.address}",
        )
    return (
        f"{where}: {said}",
        f"`ip route get {target.address}` on {way.source.name}; a firewall that rejects says "
        "the same; SUMPTER_INTERFACES chooses a network that all machines share",
    )


def _numbers(ports: Sequence[int]) -> str:
    """`port 5`, `ports 5-8`, `ports 5 and 7`."""
    if len(ports) == 1:
        return f"port {ports[0]}"
    if ports[-1] - ports[0] == len(ports) - 1:
        return f"ports {ports[0]}-{ports[-1]}"
    return f"ports {', '.join(map(str, ports))}"


def check_mtu(pair: Pair) -> list[Finding]:
    """The MTUs of both ends, and whether packets of that size arrive."""
    a, b = pair.there.source, pair.there.target
    findings = []
    if a.mtu and b.mtu and a.mtu != b.mtu:
        large, small = (a, b) if a.mtu > b.mtu else (b, a)
        findings.append(
            warning(
                "MTU",
                f"{_mtu(a)}, but {_mtu(b)}: what is no TCP connection between them loses packets",
                f"on one network all have the same MTU: `ip link set {large.interface} mtu "
                f"{small.mtu}` on {large.name}, or `ip link set {small.interface} mtu "
                f"{large.mtu}` on {small.name} if the switches carry it",
            )
        )
    for way in (pair.there, pair.back):
        if known := way.figures.get("mtu"):
            findings.append(_passed(way, known))
    return findings


def _mtu(machine: Machine) -> str:
    return f"{machine.interface} of {machine.name} has {machine.mtu}"


def _passed(way: Way, known: Mapping[str, Any]) -> Finding:
    check, size, largest = f"MTU {way.name}", known["size"], known["largest"]
    if not known["udp"]:
        return note(
            check,
            f"{way.title}: even small UDP datagrams do not arrive, so it is not known how large "
            "packets may be",
            f"allow UDP from {way.source.address} to {way.target.address} during the check; "
            "Sumpter itself needs only TCP",
        )
    if largest == size:
        return ok(check, f"{way.title}: packets of {size} bytes arrive whole")
    lower = f"`ip link set {way.source.interface} mtu {largest}` on {way.source.name}"
    if known["told"]:
        return warning(
            check,
            f"{way.title}: packets of {size} bytes are too large, those of {largest} pass; "
            "routers say so, and TCP adapts",
            f"raise the MTU on the way, or {lower}",
        )
    return error(
        check,
        f"{way.title}: a black hole: packets of more than {largest} bytes vanish though both MTUs "
        f"are at least {size}, and no router says so: connections open and then stall",
        f"give the switches and tunnels on the way an MTU of {size}, or let ICMP 'fragmentation "
        f"needed' (IPv6: 'packet too big') pass, or {lower}",
    )


def check_clock(pair: Pair) -> list[Finding]:
    """How far the clocks are apart, and what that does."""
    known = pair.clock()
    if known is None:
        return []
    offset, trip = known
    a, b = pair.there.source, pair.there.target
    said = f"{b.name} is {_duration(abs(offset))} {'ahead of' if offset > 0 else 'behind'} {a.name}"
    uncertain = f"known to within {_duration(trip / 2)}"
    if abs(offset) <= trip / 2:
        return [ok("clock", f"{b.name} and {a.name} agree to within {_duration(trip / 2)}")]
    if abs(offset) <= _CLOCK_S:
        return [ok("clock", f"{said}, {uncertain}")]
    remedy = "run chrony or systemd-timesyncd on both, with the same servers of time"
    if abs(offset) > _CERTIFICATE_S and (a.tls or b.tls):
        certificates = f"{said}: with TLS one takes a certificate that was made less than "
        certificates += f"{_duration(abs(offset))} ago for not yet valid, or one that ends as soon "
        return [error("clock", f"{certificates}for expired", remedy)]
    found = f"{said}: timestamps in their logs do not fit together; sums, timeouts and `sumpter "
    return [warning("clock", f"{found}trace` do not depend on it", remedy)]


def check_speed(pair: Pair) -> list[Finding]:
    """Speeds against what the interfaces are made for, against each other, and the round trip."""
    findings = []
    if known := pair.clock():
        findings.append(_round_trip(known[1]))
    speeds = pair.gbps()
    if speeds is None:
        return findings
    nominal = nominal_gbps(pair)
    a, b = pair.there.source, pair.there.target
    both = _both(pair)
    said = f"{a.name} to {b.name} {speeds[0]:.3g}, back {speeds[1]:.3g} Gb/s; at once "
    said += f"{both[0]:.3g} and {both[1]:.3g}"
    said += f", of {nominal:g}" if nominal else ", of an interface of unknown speed"
    ethtool = f"`ethtool {a.interface}` and `ethtool -S {a.interface}` (errors, drops) on both, the"
    if not all(speeds):
        return [
            *findings,
            error(
                "speed",
                f"{said}: connections open, but large transfers stall",
                f"the MTU on the way (above), then {ethtool} cable and the switch's port",
            ),
        ]
    if nominal and min(speeds) < _SLOW * nominal:
        text = f"{said}: less than half of what the interfaces are made for{_busy_cores(pair)}"
        remedy = f"{ethtool} cable and the switch's port, other traffic, and the findings of each "
        return [*findings, warning("speed", text, f"{remedy}machine about TCP buffers and cores")]
    if min(speeds) < _SLOW * max(speeds):
        slow = f"{a.name} to {b.name}" if speeds[0] < speeds[1] else f"{b.name} to {a.name}"
        text = f"{said}: {slow} has less than half of the other way"
        remedy = f"{ethtool} duplex mode, and whether both ways take the same route"
        return [*findings, warning("speed", text, remedy)]
    if all(both) and sum(both) < _DUPLEX * max(speeds) and nominal and sum(both) < nominal:
        text = f"{said}: both ways at once carry no more than one{_busy_cores(pair)}"
        remedy = f"{ethtool} duplex mode (full?); servers receive and send at the same time"
        return [*findings, warning("speed", text, remedy)]
    return [*findings, ok("speed", said)]


def _round_trip(seconds: float) -> Finding:
    said = f"{_duration(seconds)} at best"
    if seconds <= _FAR_S:
        return ok("round trip", said)
    return note(
        "round trip",
        f"{said}: a wide-area link, on which synchronous training waits",
        "raise TCP's buffers (net.ipv4.tcp_rmem, tcp_wmem), or train with LocalSGD or DiLoCo",
    )


def _both(pair: Pair) -> tuple[float, float]:
    if speeds := pair.there.figures.get("speeds"):
        return speeds["both_to"], speeds["both_from"]
    speeds = pair.back.figures["speeds"]
    return speeds["both_from"], speeds["both_to"]


def _busy_cores(pair: Pair) -> str:
    """A remark where the measurement itself had no more cores to use."""
    way = pair.there if pair.there.figures.get("speeds") else pair.back
    used, cores = way.figures["speeds"]["cores_used"], way.source.cores
    if used < 0.8 * cores:
        return ""
    return f" (all cores of {way.source.name} were busy, so this may be their limit)"


def nominal_gbps(pair: Pair) -> float:
    """What the slower interface is made for; 0 where it is not known of both."""
    return min(pair.there.source.speed_mbit, pair.there.target.speed_mbit) / 1000


def check_outliers(pairs: Sequence[Pair]) -> list[Finding]:
    """Pairs far below the others, or the machine that all of them have in common."""
    known = {pair: min(speeds) for pair in pairs if (speeds := pair.gbps())}
    if len(known) < 3:
        return []
    usual = median(known.values())
    slow = [pair for pair, speed in known.items() if speed < _SLOW * usual]
    findings = []
    names = list(dict.fromkeys(n for p in known for n in _names(p)))
    for name in names:
        own = [pair for pair in known if name in _names(pair)]
        if len(own) < 2 or not all(pair in slow for pair in own):
            continue
        slow = [pair for pair in slow if pair not in own]
        findings.append(
            warning(
                "speed",
                f"{name} is slow with every other machine: at most "
                f"{max(known[p] for p in own):.3g} Gb/s, where {usual:.3g} are usual",
                f"its cable, its port at the switch, its interface and cores: `sumpter doctor` on "
                f"{name}; leave it out of jobs until then, since all wait for it",
            )
        )
    for pair in slow:
        findings.append(
            warning(
                "speed",
                f"{pair.title} have {known[pair]:.3g} Gb/s, where {usual:.3g} are usual",
                "the links between their switches: a trunk that others use, too, or a long way",
            )
        )
    return findings


def _names(pair: Pair) -> tuple[str, str]:
    return pair.there.source.name, pair.there.target.name


def check_busy(machines: Sequence[Machine]) -> list[Finding]:
    """Ports of SUMPTER_PORT that could not be tried."""
    return [
        note(
            "ports",
            f"{_numbers(each.busy)} of {each.name}: in use, so no connection to it was tried",
            f"end the server that holds it and check again; `ss -ltnp` on {each.name} shows it",
        )
        for each in machines
        if each.busy
    ]


def check_versions(machines: Sequence[Machine]) -> list[Finding]:
    """Whether all machines have the same of everything that must fit together."""
    findings = []
    packages = list(dict.fromkeys(name for each in machines for name in each.versions))
    for package in packages:
        found: dict[str, list[str]] = {}
        for each in machines:
            found.setdefault(each.versions.get(package, "unknown"), []).append(each.name)
        if len(found) == 1:
            findings.append(ok(package, f"{next(iter(found))} everywhere"))
            continue
        said = "; ".join(f"{version} on {', '.join(on)}" for version, on in found.items())
        if package == _WIRE:
            text = f"{said}: their processes refuse each other"
            findings.append(error(package, text, "install one version of Sumpter everywhere"))
        elif package == "torch" and "not installed" in found and len(found) == 2:
            # Machines of servers need none.
            remedy = "install it on those that run workers; servers do without"
            findings.append(note(package, said, remedy))
        else:
            make = note if package in _COMPATIBLE else warning
            remedy = f"install one version of {package} on all machines"
            findings.append(make(package, said, remedy))
    return findings


def _duration(seconds: float) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:.3g} h"
    if seconds >= 120:
        return f"{seconds / 60:.3g} min"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
