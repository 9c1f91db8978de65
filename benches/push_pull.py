"""Goodput of push_pull over loopback, beside Gloo's all-reduce, and what it costs in CPU time.

    python benches/push_pull.py                              # n = 2, 4 and k = 0, 1, 2; 64 MiB
    python benches/push_pull.py --bytes 16777216 --rounds 3 --workers 2 --servers 0

One process a worker and a server, all on this machine, each pretending a machine of its own. Both
systems run in the same worker processes and take turns, round by round, so that a noisy machine
disturbs both alike. Every result is checked. Loopback shows what the software costs, not what a
network gains: there are no links to relieve, and all processes share the cores.
"""

import argparse
import contextlib
import csv
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil

from sumpter import _native

WARMUP_ROUNDS = 2
SYSTEMS = ("sumpter", "gloo")


def worker(size_bytes: int) -> None:
    """Sums once per line on standard input, with the system the line names."""
    import torch
    import torch.distributed as dist

    import sumpter.torch as bps

    torch.set_num_threads(1)
    bps.init()
    rank, world_size = bps.rank(), bps.size()
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    start = torch.arange(size_bytes // 4, dtype=torch.float32).remainder_(1024.0)
    expected = start * world_size + sum(range(world_size))
    tensor = torch.empty_like(start)
    print("ready", flush=True)
    for line in sys.stdin:
        system = line.strip()
        torch.add(start, float(rank), out=tensor)
        # A Gloo barrier, so that the round starts everywhere at once for both systems.
        dist.barrier()
        cpu, wall = time.process_time(), time.perf_counter()
        if system == "sumpter":
            bps.synchronize(bps.push_pull_async_inplace(tensor, average=False, name="bench"))
        else:
            dist.all_reduce(tensor)
        seconds, cpu = time.perf_counter() - wall, time.process_time() - cpu
        if not torch.equal(tensor, expected):
            raise SystemExit(f"rank {rank}: {system} gave a wrong sum")
        print(f"{seconds} {cpu}", flush=True)
    dist.destroy_process_group()
    bps.shutdown()


@contextlib.contextmanager
def cluster(
    workers: int, servers: int, size_bytes: int
) -> Iterator[tuple[list[subprocess.Popen], list[subprocess.Popen]]]:
    """Processes of one cell; ended when the block is left."""
    token = _native.generate_token()
    coordinator = _native.Coordinator("127.0.0.1:0", {"token": token})
    shared = dict(os.environ, SUMPTER_TOKEN=token, SUMPTER_COORDINATOR=coordinator.address)
    shared.update(SUMPTER_SERVERS=str(servers), WORLD_SIZE=str(workers), OMP_NUM_THREADS="1")
    shared.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    serve = [sys.executable, "-c", "from sumpter import _native; _native.serve({'lanes': '1'})"]
    work = [sys.executable, __file__, "--worker", "--bytes", str(size_bytes)]
    helpers: list[subprocess.Popen] = []
    ranks: list[subprocess.Popen] = []
    try:
        for k in range(servers):
            helpers.append(subprocess.Popen(serve, env=dict(shared, SUMPTER_MACHINE=f"cpu-{k}")))
        for rank in range(workers):
            env = dict(shared, RANK=str(rank), SUMPTER_MACHINE=f"gpu-{rank}")
            pipe = subprocess.PIPE
            ranks.append(subprocess.Popen(work, env=env, stdin=pipe, stdout=pipe, text=True))
        for process in ranks:
            if read_line(process) != "ready":
                raise SystemExit("a worker did not start")
        yield ranks, helpers
        for process in ranks:
            process.stdin.close()
        for process in ranks + helpers:
            if process.wait(30) != 0:
                raise SystemExit("a process failed")
    finally:
        for process in ranks + helpers:
            process.kill()
            process.wait()
        coordinator.stop()


def read_line(process: subprocess.Popen) -> str:
    line = process.stdout.readline()
    if not line:
        raise SystemExit("a worker ended early; its output says why")
    return line.strip()


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def one_round(
    system: str, ranks: list[subprocess.Popen], helpers: list[subprocess.Popen]
) -> tuple[float, float]:
    """Seconds of the slowest rank, and CPU seconds of all processes."""

    def helper_cpu() -> float:
        return sum(sum(psutil.Process(p.pid).cpu_times()[:2]) for p in helpers)

    before = helper_cpu()
    for process in ranks:
        process.stdin.write(system + "\n")
        process.stdin.flush()
    figures = [tuple(map(float, read_line(process).split())) for process in ranks]
    cpu = sum(figure[1] for figure in figures) + helper_cpu() - before
    return max(figure[0] for figure in figures), cpu


def measure(workers: int, servers: int, size_bytes: int, rounds: int) -> list[dict[str, object]]:
    """Both systems' figures for one cell."""
    seconds: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    cpu: dict[str, list[float]] = {system: [] for system in SYSTEMS}
    with cluster(workers, servers, size_bytes) as (ranks, helpers):
        for index in range(WARMUP_ROUNDS + rounds):
            for system in SYSTEMS:
                figures = one_round(system, ranks, helpers)
                if index >= WARMUP_ROUNDS:
                    seconds[system].append(figures[0])
                    cpu[system].append(figures[1])
    rows = []
    for system in SYSTEMS:
        median = statistics.median(seconds[system])
        rows.append(
            {
                "system": system,
                "workers": workers,
                "servers": servers if system == "sumpter" else 0,
                "bytes": size_bytes,
                "rounds": rounds,
                "median_s": round(median, 5),
                "min_s": round(min(seconds[system]), 5),
                "max_s": round(max(seconds[system]), 5),
                "goodput_gbyte_s": round(size_bytes / median / 1e9, 4),
                # Of all workers and servers, for each 1e9 bytes of tensor summed.
                "cpu_s_per_gbyte": round(sum(cpu[system]) / rounds / size_bytes * 1e9, 3),
            }
        )
    return rows


def environment() -> dict[str, str]:
    """Where and what was measured, for the record."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    with open("/proc/cpuinfo") as info:
        model = next((line.split(":")[1].strip() for line in info if "model name" in line), "?")
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip(),
        "cpu": model,
        "cores": str(os.cpu_count()),
        "kernel": platform.release(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", default="2,4", help="worker counts (default: 2,4)")
    parser.add_argument("--servers", default="0,1,2", help="server counts (default: 0,1,2)")
    parser.add_argument("--bytes", type=int, default=64 << 20, help="tensor size (64 MiB)")
    parser.add_argument("--rounds", type=int, default=10, help="timed rounds a cell (10)")
    parser.add_argument("--csv", help="also write the rows to this file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options.bytes)
    rows = []
    print(
        f"{'n':>2} {'k':>2} {'system':8} {'median s':>9} {'min':>8} {'max':>8} "
        f"{'GB/s':>7} {'CPU s/GB':>9}"
    )
    for workers in map(int, options.workers.split(",")):
        for servers in map(int, options.servers.split(",")):
            for row in measure(workers, servers, options.bytes, options.rounds):
                rows.append({**row, "beside_servers": servers, **environment()})
                print(
                    f"{workers:2} {servers:2} {row['system']:8} {row['median_s']:9.4f} "
                    f"{row['min_s']:8.4f} {row['max_s']:8.4f} {row['goodput_gbyte_s']:7.3f} "
                    f"{row['cpu_s_per_gbyte']:9.2f}",
                    flush=True,
                )
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            table = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
            table.writeheader()
            table.writerows(rows)


if __name__ == "__main__":
    main()
