"""Interfaces, the way to the coordinator, and the ports that Sumpter listens on."""

from __future__ import annotations

import ipaddress

from sumpter.doctor import job
from sumpter.doctor.finding import Finding, error, note, ok, warning
from sumpter.doctor.probe import Interface, Probe

# An address of a network for documentation: no host has it, and nothing is sent to it.
_SOMEWHERE = "198.51.100.1"
_CONNECT_S = 3.0


def check_interfaces(probe: Probe) -> list[Finding]:
    """Every interface that has an address, with what its driver says of its speed."""
    findings = []
    for each in probe.interfaces():
        if each.addresses and not each.loopback:
            state = "up" if each.up else "down"
            speed = f"{each.speed_mbit / 1000:g} Gb/s" if each.speed_mbit else "speed unknown"
            findings.append(
                ok(f"interface {each.name}", f"{', '.join(each.addresses)}, {state}, {speed}")
            )
    if not findings:
        findings.append(
            note(
                "interfaces",
                "none but loopback, so jobs stay on this machine",
                "give the machine or container a network if a job shall have several machines",
            )
        )
    return findings


def check_route(probe: Probe) -> list[Finding]:
    """Which interface Sumpter uses, and why."""
    interfaces = probe.interfaces()
    wanted = probe.environment.get("SUMPTER_INTERFACES")
    if wanted:
        return [_given_interface(name.strip(), interfaces) for name in wanted.split(",")]
    meeting = job.meeting_point(probe.environment)
    if meeting is None:
        own = probe.own_address(_SOMEWHERE)
        used = f"{own} ({_name_of(own, interfaces)})" if own else "no interface"
        return [
            ok(
                "way",
                f"no coordinator and no MASTER_ADDR are given; the default route leaves by {used}",
            )
        ]
    addresses = probe.resolve(meeting.host)
    if not addresses:
        return [
            error(
                "way",
                f"{meeting.host} ({meeting.source}) is unknown here",
                "give its address, or add its name to DNS or /etc/hosts",
            )
        ]
    return _route(probe, meeting, addresses[0], interfaces)


def _route(
    probe: Probe, meeting: job.Meeting, target: str, interfaces: list[Interface]
) -> list[Finding]:
    own = probe.own_address(target)
    if own is None:
        return [
            error(
                "way",
                f"the routing table has no way to {target} ({meeting.source})",
                f"`ip route get {target}` shows what the kernel thinks; add a route",
            )
        ]
    name = _name_of(own, interfaces)
    said = f"towards {target} ({meeting.source}) the routing table takes {own} ({name})"
    machines = job.machines(probe.environment)
    if ipaddress.ip_address(own).is_loopback and machines != 1:
        make = note if machines is None else error
        remedy = f"for a job of several machines give {meeting.source} an address that they reach"
        return [make("way", f"{said}, which other machines cannot reach", remedy)]
    chosen = next((each for each in interfaces if each.name == name), None)
    faster = _faster_than(chosen, interfaces)
    if faster is not None:
        return [
            warning(
                "way",
                f"{said}, though {faster.name} is faster ({faster.speed_mbit} Mb/s)",
                f"SUMPTER_INTERFACES={faster.name}, if the other machines reach it",
            )
        ]
    return [ok("way", said)]


def _given_interface(wanted: str, interfaces: list[Interface]) -> Finding:
    """An entry of SUMPTER_INTERFACES: the name of an interface, or an address of this machine."""
    for each in interfaces:
        if wanted == each.name or _has(each, wanted):
            if each.addresses and not each.up:
                return error(
                    "way",
                    f"SUMPTER_INTERFACES has {wanted}, which is down",
                    f"`ip link set {each.name} up`, or take it out of the list",
                )
            if each.addresses:
                own = each.addresses[0] if wanted == each.name else wanted
                return ok("way", f"{own} ({each.name}), as SUMPTER_INTERFACES says")
            return error(
                "way",
                f"SUMPTER_INTERFACES has {wanted}, which has no address",
                f"`ip address add` one to {each.name}, or choose another interface",
            )
    names = ", ".join(each.name for each in interfaces)
    return error(
        "way",
        f"SUMPTER_INTERFACES has {wanted!r}, which this machine does not have",
        f"choose one of {names}",
    )


def _has(interface: Interface, address: str) -> bool:
    """Whether an interface has an address; loopback has all of its network."""
    if address in interface.addresses:
        return True
    try:
        return interface.loopback and ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _faster_than(chosen: Interface | None, interfaces: list[Interface]) -> Interface | None:
    if chosen is None or chosen.speed_mbit is None:
        return None
    others = [i for i in interfaces if i.up and i.addresses and not i.loopback and i.speed_mbit]
    fastest = max(others, key=lambda i: i.speed_mbit or 0, default=chosen)
    return fastest if (fastest.speed_mbit or 0) > chosen.speed_mbit else None


def _name_of(address: str | None, interfaces: list[Interface]) -> str:
    for each in interfaces:
        if address in each.addresses:
            return each.name
    # All of 127.0.0.0/8 belongs to loopback, which has only one address of it.
    is_loopback = address is not None and ipaddress.ip_address(address).is_loopback
    return "lo" if is_loopback else "unknown interface"


def check_host_name(probe: Probe) -> list[Finding]:
    """Whether this machine's own name stands for an address that others can use."""
    name = probe.host_name()
    addresses = probe.resolve(name)
    if not addresses:
        return [
            warning(
                "host name",
                f"{name} has no address, though launchers may hand it out as MASTER_ADDR",
                f"add a line `ADDRESS {name}` to /etc/hosts",
            )
        ]
    own = ipaddress.ip_address(addresses[0].split("%")[0])
    if own.is_loopback:
        return [
            warning(
                "host name",
                f"{name} is {own}: a process that gets this name as MASTER_ADDR from this machine "
                "finds only itself",
                f"in /etc/hosts give {name} the address that others know (Debian's installer "
                "writes 127.0.1.1 there), or hand out addresses instead of names",
            )
        ]
    return [ok("host name", f"{name} is {own}")]


def check_coordinator(probe: Probe) -> list[Finding]:
    """Whether the coordinator that is given can be reached."""
    given = probe.environment.get("SUMPTER_COORDINATOR")
    if not given:
        return []
    parsed = job.host_and_port(given)
    if parsed is None:
        # The settings' check says what is wrong with it.
        return []
    failure = probe.connect_error(*parsed, _CONNECT_S)
    if failure is None:
        return [ok("coordinator", f"{given} accepts connections")]
    if isinstance(failure, ConnectionRefusedError):
        return [
            warning(
                "coordinator",
                f"{given} can be reached, but no process listens on that port",
                f"start it there: sumpter coordinator --listen 0.0.0.0:{parsed[1]}",
            )
        ]
    return [
        error(
            "coordinator",
            f"{given} cannot be reached: {failure}",
            "check the address, and that no firewall drops TCP to that port",
        )
    ]


def check_ports(probe: Probe) -> list[Finding]:
    """Ports that Sumpter would listen on here."""
    findings = []
    for use in job.ports(probe.environment, probe.cores()[1]):
        taken = [port for port in use.ports if probe.port_in_use(port)]
        numbers = f"{use.ports[0]}" if len(use.ports) == 1 else f"{use.ports[0]}-{use.ports[-1]}"
        if not taken:
            findings.append(ok(use.what, f"port {numbers}: free"))
            continue
        owner = probe.listener(taken[0]) or "a process that this user cannot see"
        make = error if use.needed else note
        findings.append(make(use.what, f"port {taken[0]} is in use by {owner}", use.remedy))
    if not probe.environment.get("SUMPTER_PORT", "").strip("0"):
        bounds = (probe.read("/proc/sys/net/ipv4/ip_local_port_range") or "").split()
        if bounds:
            findings.append(
                ok("lanes' ports", f"any free ones of {'-'.join(bounds)}; SUMPTER_PORT fixes them")
            )
    return findings
