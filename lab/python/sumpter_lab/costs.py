"""What encryption, checksums and results kept for others cost: two workers on this machine.

    sumpter bench costs [--repeat 3] [--only NAME ...] [-o costs.json]

Processor time a round, user and system together, is what is compared: it stays the same on a
machine that has other work. Runs of all kinds are interleaved. Needs openssl for TLS.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

TCP = ["--set", "local_link=tcp"]
KINDS = {
    "TCP": TCP,
    "TCP, TLS": TCP,
    "TCP, checksum": [*TCP, "--set", "checksum=true"],
    "TCP, elastic, redo off": [*TCP, "--min-workers", "1", "--set", "redo=false"],
    "TCP, elastic, redo on": [*TCP, "--min-workers", "1"],
    "shared memory": [],
    "shared memory, checksum": ["--set", "checksum=true"],
}
# MiB of a float32 tensor, and rounds that are timed.
SIZES = {1: 200, 64: 8}


def worker() -> None:
    """In each worker: prints what a round took, by size."""
    import numpy as np

    import sumpter

    sumpter.init()
    for mib, rounds in SIZES.items():
        tensor = np.ones(mib << 18, np.float32)
        for timed in (3, rounds):
            before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
            for _ in range(timed):
                sumpter.push_pull(tensor, name=f"tensor{mib}")
            wall = (time.perf_counter() - began) / timed
            after = resource.getrusage(resource.RUSAGE_SELF)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        row = {"mib": mib, "cpu_s": used / rounds, "wall_s": wall, "peak_kib": after.ru_maxrss}
        print("ROW", json.dumps({"rank": sumpter.rank(), **row}), flush=True)
    # No rank leaves while another one works.
    sumpter.push_pull(np.ones(1), name="end")
    sumpter.shutdown()


def certificate(folder: Path) -> list[str]:
    """A certificate for this machine and the one that signs it, as settings."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    fresh = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    openssl("req", "-x509", *fresh, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", *fresh, "-subj", "/CN=host", "-keyout", "host.key", "-out", "host.csr")
    signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names"]
    openssl("x509", "-req", "-in", "host.csr", *signed, "-out", "host.pem")
    files = {"tls_cert": "host.pem", "tls_key": "host.key", "tls_ca": "ca.pem"}
    return [word for name, of in files.items() for word in ("--set", f"{name}={folder / of}")]


def run(options: list[str]) -> list[dict]:
    """The rows of one job."""
    program = [sys.executable, __file__, "--worker"]
    command = [sys.executable, "-m", "sumpter", "run", "-n", "2", *options, "--", *program]
    done = subprocess.run(command, capture_output=True, text=True)
    rows = [line.split("ROW", 1)[1] for line in done.stdout.splitlines() if "ROW" in line]
    if done.returncode or len(rows) != 2 * len(SIZES):
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return [json.loads(row) for row in rows]


def table(runs: list[dict]) -> None:
    """Medians over all runs and both workers."""
    heads = ["MiB", "CPU ms a round", "CPU s a GB", "wall ms", "peak MiB"]
    print(" " * 26 + "".join(f"{head:>15}" for head in heads))
    for kind in dict.fromkeys(run["kind"] for run in runs):
        rows = [row for run in runs if run["kind"] == kind for row in run["rows"]]
        for mib in SIZES:
            of = [row for row in rows if row["mib"] == mib]
            keys = ("cpu_s", "wall_s", "peak_kib")
            cpu, wall, peak = (statistics.median(row[key] for row in of) for key in keys)
            values = [mib, cpu * 1e3, cpu / (mib * 2**20 / 1e9), wall * 1e3, peak / 1024]
            print(f"{kind:26}" + "".join(f"{value:15.4g}" for value in values))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "sumpter bench costs", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--repeat", type=int, default=3, help="runs of each kind")
    parser.add_argument("--only", nargs="*", choices=list(KINDS), help="only these kinds")
    parser.add_argument("-o", "--output", type=Path, help="also write all rows to this file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        return worker()
    # Not in a worker, whose memory is measured.
    from sumpter_lab.scaffold.results.output import check_writable

    check_writable(options.output, "--output")
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        kinds = {kind: KINDS[kind] for kind in options.only or KINDS}
        if "TCP, TLS" in kinds:
            kinds["TCP, TLS"] = [*TCP, *certificate(Path(folder))]
        for turn in range(options.repeat):
            for kind in list(kinds)[:: 1 if turn % 2 == 0 else -1]:
                runs.append({"kind": kind, "load": os.getloadavg()[0], "rows": run(kinds[kind])})
    table(sorted(runs, key=lambda run: list(KINDS).index(run["kind"])))
    if options.output:
        options.output.write_text(json.dumps(runs, indent=1) + "\n")


if __name__ == "__main__":
    main()
