"""The laboratory's Rust: benchmarks of one machine and the what-if simulation."""

from collections.abc import Sequence

__version__: str

def whatif(request_json: str) -> str:
    """What an iteration would take on each of some clusters; request and answer are JSON."""

def whatif_machines(toml: str, local_reduction: str) -> str:
    """What a machine list has, as JSON: numbers of machines, GPUs and racks, the slowest link of a
    GPU machine, and how the GPUs of each kind of machine add. ConfigError for a list that cannot
    be, or a local reduction that its machines cannot have."""

def bench_steps(steps: Sequence[tuple[str, str, int, int, int, int]], repeats: int) -> float:
    """Seconds that `steps` take, in order, `repeats` times over.

    A step is (kernel, dtype, address written to, address read from, address of what is added to
    where that is elsewhere, else 0, elements). The kernels are "sum", "min", "max" and "product",
    which round 16-bit floats each time; for sums in float32 "pair", "accumulate" and "last";
    "copy"; and "checksum", which writes 4 bytes, the CRC-32C of what it reads. All ranges must be
    valid memory, and what is written lie apart from the others.
    """

def bench_server(
    *,
    workers: int,
    lanes: int,
    tensors: Sequence[int],
    partition_bytes: int,
    chunk_bytes: int,
    credit_bytes: int,
    rounds: int,
    rules: Sequence[str],
) -> str:
    """A server under the load of workers that compute nothing, also with update rules: samples as
    JSON. ConfigError for a rule that there is not."""

def bench_codec(
    codec: str, *, elements: int, rounds: int
) -> tuple[int, float, list[tuple[float, float, float, float, float]]]:
    """A codec on so many elements of float32 in cache: the bytes they become, the part of their
    norm that is lost, and by round the seconds of encoding, encoding with a residual, decoding,
    adding to sums, copying. ConfigError for what is no codec."""

def bench_aggregation(
    *,
    threads: int,
    contributions: int,
    bytes: int,
    chunk_bytes: int,
    buffer_bytes: int,
    rounds: int,
) -> list[tuple[float, float]]:
    """Bytes of contributions a second by round: tall, wide."""

def bench_affinity(
    *, threads: int, contributions: int, bytes: int, chunk_bytes: int, rounds: int
) -> list[tuple[float, float]]:
    """Bytes of contributions a second by round: key to lane, worker to lane."""

def bench_alignment(
    *, offsets: Sequence[int], chunk_bytes: int, chunks: int, rounds: int
) -> list[tuple[int, float, float]]:
    """Offset from a page, bytes a second of the kernel, of receiving and adding."""

def bench_connections(
    *, counts: Sequence[int], bytes: int, chunk_bytes: int, rounds: int
) -> list[tuple[int, float, float]]:
    """Connections, seconds for `bytes` there and back, processor seconds."""

def bench_datapath(
    *, provider: str | None, bytes: int, chunk_bytes: int, rounds: int
) -> list[tuple[str, float, float]]:
    """Step of the ladder, seconds for `bytes` there and back, processor seconds; without a
    libfabric provider the steps that need none."""

class Members:
    """Members of one coordinator, each with a thread and a session of its own in this process.

    A method is a phase of a job: it returns when every member is done, and raises SumpterError
    when one is lost or the phase takes longer than `patience_s`.
    """

    def __new__(
        cls,
        *,
        coordinator: str,
        token: str,
        workers: int,
        servers: int,
        lanes: int,
        patience_s: float,
        peer_timeout_s: float,
    ) -> Members: ...
    @property
    def plan_bytes(self) -> int:
        """Bytes of the message with the first plan."""

    def declare(self, tensors: int) -> int:
        """Every worker declares so many tensors; the bytes of the table that each gets."""

    def beat(self, duration_s: float, waiting: bool) -> None:
        """Heartbeats for so many seconds, of a job that trains, or whose every operation waits for
        one rank."""

    def change(self, apart: bool) -> tuple[float, float, int]:
        """A server dies: seconds until all workers have the plan without it, seconds until all
        were told to stop, bytes of the message. With `apart`, no two workers answer alike."""

    def leave(self) -> None:
        """All leave; nothing happens the second time."""

def placement_s(*, workers: int, servers: int, lanes: int, tensors: Sequence[int]) -> float:
    """Processor seconds in which one worker places tensors of these bytes on the lanes of a job:
    one of each worker and `lanes` of each server. ConfigError for numbers of which no plan can be
    made."""
