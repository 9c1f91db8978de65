"""Settings of the environment: what differs from the defaults, and what cannot be right."""

from __future__ import annotations

from sumpter import _native
from sumpter._environment import unknown_variables
from sumpter.doctor.finding import Finding, error, ok, warning
from sumpter.doctor.probe import Probe

_HIDDEN = "SUMPTER_TOKEN"


def check_settings(probe: Probe) -> list[Finding]:
    """Every setting that the environment changes, and every variable that no setting reads."""
    environment = probe.environment
    rows = {row["env"]: row for row in _native.settings()}
    given = {name: environment[name] for name in rows if environment.get(name)}
    findings = [_setting(rows[name], text) for name, text in given.items()]
    if all(finding.state == "ok" for finding in findings):
        findings += _contradiction(given)
    findings += [_unknown(name, meant) for name, meant in unknown_variables(environment)]
    return findings or [ok("settings", "all are the defaults")]


def _setting(row: dict[str, str], text: str) -> Finding:
    name = row["env"]
    try:
        # By itself, as the table stops at the first one; numbers of ranks refer to others.
        _native.check_environment({name: text, **_room_for(row["name"])})
    except _native.ConfigError as refusal:
        return error(name, str(refusal), f"unset {name}, or give {row['range']}")
    shown = "..." if name == _HIDDEN else text
    default = f"default {row['default']}" if row["default"] else "no default"
    return ok(name, f"{shown} ({default})")


def _room_for(name: str) -> dict[str, str]:
    """What makes any rank that is a number a possible one."""
    if name in ("rank", "local_rank", "local_size"):
        return {"WORLD_SIZE": "65536"}
    return {}


def _contradiction(given: dict[str, str]) -> list[Finding]:
    """Settings that cannot hold together."""
    try:
        _native.check_environment(given)
    except _native.ConfigError as refusal:
        return [error("settings", str(refusal), "change or unset one of them")]
    return []


def _unknown(name: str, nearest: str) -> Finding:
    meant = f"did you mean {nearest}?" if nearest else "`sumpter config` lists those there are"
    found = "no setting has this name, so nothing reads it"
    return warning(name, found, f"{meant} Otherwise: unset {name}")
