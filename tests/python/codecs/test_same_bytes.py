"""Neither cuts nor servers, nor the death of these, change a byte of a compressed result."""

from __future__ import annotations

from collections.abc import Callable

from jobs import Job

RANKS = 3
DIGEST_BYTES = 32


def test_partitions_servers_and_their_deaths_change_no_byte(make_job: Callable[..., Job]) -> None:
    def results(partition_bytes: str, servers: int, die: bool = False) -> list[bytes]:
        # Of three addends the sum depends on the order.
        settings = {"partition_bytes": partition_bytes, "deterministic": True}
        job = make_job(RANKS, servers, **settings)
        pids = [str(job.server_pid(index)) for index in range(servers - 1)] if die else []
        job.start("compressed_rounds.py", *pids).finish()
        # As many were killed as there are deaths.
        if die:
            assert job.output(0).count("kills") == len(pids), job.report("no server was killed")
        return [job.result(rank) for rank in range(RANKS)]

    first, *others = results("32KiB", 0)
    assert others == [first, first], "ranks have other results"
    for partition_bytes, servers, die in (
        ("4MiB", 0, False),
        ("32KiB", 4, False),
        ("4MiB", 4, False),
        ("32KiB", 4, True),
        ("4MiB", 4, True),
    ):
        for rank, found in enumerate(results(partition_bytes, servers, die)):
            assert found == first, (
                f"partitions of {partition_bytes}, {servers} servers, killed: {die}: rank {rank} "
                f"has another result in round and tensor {first_difference(found, first)}"
            )


def first_difference(one: bytes, other: bytes) -> int:
    """The number of the first digest that differs; all have as many."""
    assert len(one) == len(other)
    starts = range(0, len(one), DIGEST_BYTES)
    return next(
        at // DIGEST_BYTES
        for at in starts
        if one[at : at + DIGEST_BYTES] != other[at : at + DIGEST_BYTES]
    )
