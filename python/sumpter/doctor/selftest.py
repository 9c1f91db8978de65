"""Two ranks and, over TCP, a server on this machine: do their sums come out bit for bit?"""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

from sumpter import _native
from sumpter._words import counted
from sumpter.doctor.finding import Finding, error, ok
from sumpter.doctor.probe import Probe

RANKS = 2

_RANK_MODULE = "sumpter.doctor.selftest_rank"

# It takes about a second; more than this is a hang.
_LIMIT_S = 60.0


class _Broken(Exception):
    """A process of the self-test failed; says which and with what last words."""


def check_sums(probe: Probe) -> list[Finding]:
    """Sums through every kind of link that this machine offers, with figures for information."""
    findings = [_try(probe, "self-test, TCP", servers=1, apart=True)]
    if probe.environment.get("SUMPTER_LOCAL_LINK") != "tcp":
        findings.append(_try(probe, "self-test, shared memory", servers=0, apart=False))
    return findings


def _try(probe: Probe, check: str, servers: int, apart: bool) -> Finding:
    started = time.monotonic()
    try:
        results = _job(probe, servers, apart)
    except (_Broken, _native.SumpterError, OSError) as failure:
        remedy = (
            "resolve the other findings first; SUMPTER_LOG=debug with `sumpter run -n 2` says more"
        )
        return error(check, f"failed: {failure}", remedy)
    wrong = sorted({what for result in results for what in result["wrong"]})
    if wrong:
        remedy = "report this with the output of `sumpter doctor --json`: results must never differ"
        return error(check, f"sums differ from NumPy's: {', '.join(wrong)}", remedy)
    seconds = time.monotonic() - started
    gigabytes = min(result["bytes_per_s"] for result in results) / 1e9
    checked = results[0]["checked"]
    who = f"{RANKS} ranks" + (f" and {counted(servers, 'server')}" if servers else "")
    return ok(
        check,
        f"{who}: {checked} sums equal NumPy's bit for bit; {gigabytes:.2f} GB/s of gradients a "
        f"rank, {seconds:.1f} s in all",
    )


def _job(probe: Probe, servers: int, apart: bool) -> list[dict[str, Any]]:
    """What each rank reports. `apart` makes every process pretend to be a machine of its own."""
    token = _native.generate_token()
    coordinator = _native.Coordinator("127.0.0.1:0", {"token": token})
    common = {
        "SUMPTER_COORDINATOR": coordinator.address,
        "SUMPTER_TOKEN": token,
        "SUMPTER_SERVERS": str(servers),
        "SUMPTER_LOG": "off",
    }
    started = []
    try:
        for index in range(servers):
            own = {"SUMPTER_LANES": "1", "SUMPTER_MACHINE": f"doctor-server-{index}"}
            serve = "from sumpter import _native; _native.serve({})"
            started.append(_start(probe, ["-c", serve], common | own))
        for rank in range(RANKS):
            own = {"RANK": str(rank), "WORLD_SIZE": str(RANKS)}
            if apart:
                own["SUMPTER_MACHINE"] = f"doctor-worker-{rank}"
            started.append(_start(probe, ["-m", _RANK_MODULE], common | own))
        deadline = time.monotonic() + _LIMIT_S
        return _results(started[servers:], deadline)
    finally:
        for process in started:
            process.kill()
            process.communicate()
        coordinator.stop()


def _start(probe: Probe, arguments: list[str], variables: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [probe.executable, *arguments],
        env=probe.child_environment() | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _results(ranks: list[subprocess.Popen[str]], deadline: float) -> list[dict[str, Any]]:
    """Of all ranks; when one fails, what the others say of it may be the better half."""
    results, failures = [], []
    for process in ranks:
        try:
            results.append(_result(process, deadline))
        except _Broken as failure:
            failures.append(str(failure))
    if failures:
        raise _Broken("; ".join(dict.fromkeys(failures)))
    return results


def _result(process: subprocess.Popen[str], deadline: float) -> dict[str, Any]:
    try:
        out, err = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise _Broken(f"a rank had not ended after {_LIMIT_S:g} s") from None
    if process.returncode != 0:
        words = err.strip().splitlines()
        raise _Broken(words[-1] if words else f"a rank ended with code {process.returncode}")
    return json.loads(out)
