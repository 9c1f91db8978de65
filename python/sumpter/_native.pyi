"""The Rust core of Sumpter. Private: import `sumpter` or `sumpter.torch` instead."""

import os
from collections.abc import Callable, Sequence

import numpy as np

__version__: str
WIRE_VERSION: int

class SumpterError(RuntimeError):
    """Base of every error Sumpter raises."""

class MismatchError(SumpterError):
    """Ranks disagree about a tensor; the message names both ranks and both descriptions."""

class PeerLostError(SumpterError):
    """A worker, a server or the coordinator died or left while it was needed."""

class AuthError(SumpterError):
    """The job's token is absent or wrong."""

class StartError(SumpterError):
    """The job could not start: a rank is missing, nobody listens, a port is in use."""

class ConfigError(SumpterError):
    """A setting is unknown or out of its range."""

class DeadlineError(SumpterError):
    """An operation was not complete when its time ran out."""

class ClosedError(SumpterError):
    """The session was shut down before the operation was done."""

class XlaPromise:
    """What XLA waits for in a compiled program; ends once."""

    def set(self) -> None:
        """The results are in the program's memory, which must not be touched any more."""

    def fail(self, message: str) -> None:
        """The call has failed; its program raises the message."""

class Worker:
    """This process's membership in a job: the client and its colocated summation lane."""

    @staticmethod
    def join(settings: dict[str, str], seat: Seat | None = None) -> Worker:
        """Joins the job. `settings` override the environment. Returns once the job starts.

        With `seat` it raises PeerLostError when a process of the seat's generation is gone.
        """

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    @property
    def coordinator(self) -> str: ...
    @property
    def job(self) -> str: ...
    @property
    def deterministic(self) -> bool: ...
    @property
    def blocking_wait(self) -> bool: ...
    @property
    def asynchronous(self) -> bool: ...
    @property
    def compression(self) -> str:
        """The setting: the codec of tensors that say nothing of their own; empty for none."""

    @property
    def compression_min_bytes(self) -> int: ...
    @property
    def device_group(self) -> list[tuple[int, bool]]:
        """The ranks of this rank's device group, ascending, and whether each holds shards.

        `[(rank, True)]` for a rank that is in none.
        """

    @property
    def record_order(self) -> os.PathLike[str] | None: ...
    @property
    def replay_order(self) -> os.PathLike[str] | None: ...
    def declare(
        self,
        name: str,
        collective: str,
        shape: Sequence[int],
        dtype: str,
        op: str = "sum",
        *,
        root: int = 0,
        average: bool = False,
        ranks: Sequence[int] | None = None,
        rule: str | None = None,
        staleness: int | None = 0,
        sharded: bool = False,
        compression: str = "",
    ) -> Tensor:
        """Declares a tensor: what all ranks agree about in its rounds.

        `collective` is "all_reduce", "broadcast", "reduce", "barrier" or "reduce_scatter", of
        which a tensor is the share that the root receives, or "update", of which the sums change
        a variable by `rule`, one of update_rules(), and the results are its values; `op` is "sum",
        "min", "max" or "product"; `root` is a global rank. `average` divides a floating-point sum
        by the number of contributing ranks. `ranks` are the participants, None meaning all. Above
        a `staleness` of 0, or with None, each contribution changes the variable when it arrives,
        and a rank gets the value once no other is more than so many rounds behind. Of a `sharded`
        all_reduce, each rank contributes and receives `Tensor.shard` of the sum of its device
        group only; an average divides by the number of all participants. By `compression`, a
        codec with its arguments, contributions to an all_reduce that sums floats, and results,
        travel between machines. The same declaration again gives the same tensor. Raises
        ConfigError for a word that it does not know; what does not fit the job, or what other
        ranks declare, is an error of the rounds.
        """

    def out_of_data(self) -> int:
        """Contributes zeros to what other ranks begin until all have called this.

        Returns the last rank to do so. Raises if the job ends first. Nothing else may be
        submitted meanwhile.
        """

    def start_timeline(self, path: str | os.PathLike[str]) -> None:
        """Writes what operations do from now on to a file that Chrome and Perfetto show."""

    def tune(
        self, changes: dict[str, str], *, reset: bool = False, epoch: int | None = None
    ) -> int:
        """Has the coordinator change settings of this job; the epoch from which on they hold.

        With `epoch`, only if the plan is still that one's. Raises ConfigError, and changes
        nothing, for what cannot be had.
        """

    def plan(self, epoch: int = 0) -> str:
        """The plan, once it is that of `epoch` or a later one, as JSON.

        `epoch`; `settings`: what may change, as texts; `gone`: ranks that have died; `machines`:
        `gpu` with living workers and `cpu` with servers only; `architecture`: which of them reduce.
        """

    def step(self, step: int) -> tuple[int, float]:
        """The training step, once it is `step` or a later one, and when it was seen.

        Seconds on a clock of this worker's. The step is the most rounds any one tensor has had.
        """

    def stop_timeline(self) -> None:
        """Completes the file of start_timeline(), if there is one."""

    def record_samples(self, count: int) -> None:
        """Adds to the number of training samples this worker has processed."""

    def stats(self) -> str:
        """What this worker has done so far, as JSON."""

    def shutdown(self) -> None:
        """Finishes what is in flight, leaves the job and stops the threads. May be repeated."""

class Tensor:
    """A declared tensor."""

    def submit(
        self,
        send: int,
        receive: int,
        priority: int,
        tag: str,
        keep: object,
        update: Sequence[float] | None = None,
        order: Sequence[tuple[int, int, int, int]] | None = None,
        rescale: float = 1.0,
    ) -> Handle:
        """Starts one round.

        `send` and `receive` are addresses of contiguous memory of the tensor's shape and type, or
        of this rank's shard of it, and may be equal; `keep` is held until the round is done. A
        higher `priority` goes first. `tag` is text for error messages only. Raises ConfigError for
        an address that is needed and 0.

        In an update, `update` are the coefficients of the rule for this round, in the order of
        `update_coefficients()`; then the addresses must differ. If it is asynchronous, it may
        follow an `order`, as `Handle.order()` of a round of the same tensor in another run.

        What earlier rounds have left out of a compressed tensor is multiplied by `rescale`.
        """

    def submit_staged(
        self,
        send: int,
        receive: int,
        priority: int,
        tag: str,
        keep: object,
        slice_bytes: int,
        on_slice: Callable[[int], object],
        update: Sequence[float] | None = None,
        order: Sequence[tuple[int, int, int, int]] | None = None,
        rescale: float = 1.0,
    ) -> tuple[Handle, Supply]:
        """Starts one round whose contribution comes into the memory while the round lasts.

        Nothing at `send` is read before it is supplied, if this rank contributes. If it receives,
        `on_slice(i)` is called from another thread once all of slice `i` of the result, of
        `slice_bytes` but for the last one, is final; for every slice before the round is done well.
        Slices, and what is supplied, count from the first byte of the memory. The rest is as of
        submit().
        """

    def submit_deferred(
        self, send: int, receive: int, priority: int, tag: str, keep: object
    ) -> tuple[Handle, Decision]:
        """Starts one round of a variable, of which it is decided later what it does.

        All ranks must decide the same, once the norm of the gradient is known. The addresses must
        differ; the rest is as of submit(). Raises ConfigError for a tensor without an update rule.
        """

    def submit_staged_deferred(
        self,
        send: int,
        receive: int,
        priority: int,
        tag: str,
        keep: object,
        slice_bytes: int,
        on_slice: Callable[[int], object],
    ) -> tuple[Handle, Supply, Decision]:
        """Starts one round of a variable as submit_deferred() does, staged as by submit_staged().

        The norm is known once all ranks have supplied their gradients.
        """

    def note(self, priority: int) -> None:
        """Counts a round for which nothing is to be done, since no other rank takes part."""

    def set_state(self, parts: Sequence[memoryview]) -> Handle:
        """Gives a variable its value and the slots of its rule, or its value and zeros.

        Each part is all of it as bytes, in elements of float64 for float64, else of float32. All
        ranks must pass the same while no round is under way; done once the lanes have what this
        rank mirrors. The order of slots is that of `update_rules()`.
        """

    def codec_memory(self) -> tuple[bytearray | None, bytearray | None, tuple[int, int] | None]:
        """What the codec of a compressed tensor keeps on this rank: residual and momentum.

        Both are of float32, for all elements in their order; None for what the codec does not keep,
        or if it has not encoded here yet. The third part is what codec() takes as `draws` for the
        next round, if the codec draws random numbers and the tensor has a number. MismatchError
        while a round is under way.
        """

    def set_codec_memory(
        self, residual: bytearray | memoryview | None, velocity: bytearray | memoryview | None
    ) -> Handle:
        """Has the next round go on from what codec_memory() returned, here or in another job.

        What the codec does not keep is not used. It concerns this rank alone. The handle raises
        MismatchError if a round is under way, or for another length.
        """

    def refuse(self, reason: str) -> None:
        """This rank cannot take part: rounds under way and later ones fail on all ranks."""

    def mirrored(self) -> list[tuple[int, int, list[bytes]]]:
        """What this rank mirrors of a variable: first element, last but one, and the parts."""

    @property
    def rounds(self) -> int:
        """How many rounds have begun."""

    @property
    def priority(self) -> int:
        """The priority of the last round; 0 before the first."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do: no elements."""

    @property
    def compression(self) -> str:
        """The codec by which it travels, with its arguments; empty for none."""

    @property
    def shard(self) -> tuple[int, int] | None:
        """First byte and size of what this rank contributes and receives of a sharded tensor.

        The size is 0 if it holds nothing. None if the tensor is not sharded. It is the same for
        the whole session.
        """

    @property
    def shards(self) -> list[tuple[int, int, int]] | None:
        """What each participant of this rank's device group holds: rank, first byte, size.

        Ascending by rank; together all bytes of the tensor. Those of a large tensor have equal
        numbers of elements in the order of ranks, but for the last one's, which has the remainder
        too. None if the tensor is not sharded.
        """

    @property
    def name(self) -> str: ...
    @property
    def collective(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def op(self) -> str: ...

class Calls:
    """Numbers the collectives of a process group, and begins those that come again.

    `kind` is the type of its arrays; if that has the C functions of DLPack's exchange API, what was
    learned is begun, and nothing otherwise.
    """

    def __init__(self, label: str, kind: type) -> None: ...
    @property
    def count(self) -> int:
        """How many calls have been numbered."""

    def next(self) -> int:
        """Numbers a call that `reduce` does not begin."""

    def learn(
        self,
        like: object,
        elements: int,
        op: int,
        cycle: object | None,
        label: str,
        signature: str,
    ) -> None:
        """From now on, `reduce` begins reductions `op` of so many elements of the type of `like`.

        Each is a round of the next tensor of `cycle.turns`; without a `cycle` no other rank takes
        part, and it is done when it begins. Messages show the `label`; other ranks' calls have the
        same `signature`.
        """

    def forget(self) -> None:
        """Forgets what was learned."""

    def reduce(
        self, array: object, op: int, priority: int
    ) -> tuple[Handle | None, str, int] | None:
        """Begins a reduction of an array into itself: its round, its label and the call's number.

        There is no round if no other rank takes part. Returns None, and begins nothing, if no such
        call was learned, or if the array is not in host memory with its elements as they are, in
        order and without gaps. The memory is kept until the round is done. Raises what goes wrong
        when a tensor of the cycle is declared.
        """

class Handle:
    """One submitted round."""

    def poll(self) -> bool:
        """Whether the round is done, well or badly."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Blocks until the round is done; raises if it failed or if `timeout_s` ran out."""

    def order(self) -> list[tuple[int, int, int, int]]:
        """When a round that is done has changed a variable asynchronously, by stretches.

        Of each: first element, the one after the last, the position of the contribution, and how
        many contributions were in the value that came back. Positions count the contributions of
        all ranks to the stretch, modulo 2**32. Of other rounds nothing.
        """

    def on_done(self, callback: Callable[[], object]) -> None:
        """Calls `callback` once from another thread when done; at once if it is done already."""

class Supply:
    """The contribution to a round that was submitted before it was there."""

    def supply(self, start: int, size: int) -> None:
        """`size` bytes from `start` on are in the memory, and do not change any more.

        The round of a rank that holds nothing of a sharded tensor lasts until it has supplied 0
        bytes. Raises ConfigError if the tensor has no such bytes.
        """

    def arrival(self, start: int, size: int) -> Arrival:
        """What supplies these bytes when it happens."""

    def refuse(self, reason: str) -> None:
        """The rest will never come: the tensor's rounds fail with this on all ranks."""

    def hold(
        self, slice: int, memory: tuple[int, int], gate: tuple[int, int], watch: GateWatch
    ) -> bool:
        """Has a gate opened in the moment in which a slice is final, before `on_slice`.

        `gate` is the address of an aligned 32-bit word, and the value that is stored there.
        `memory` is the address and the size of the slice in host memory: if the round fails, that
        is filled with ones in all bits before, and `watch` counts it. Both must last until the
        gate is open. No interpreter is needed for it. Returns whether it will be opened: not if
        the slice is final, the round has failed, or there is no such slice.
        """

    def release(self, slice: int) -> bool:
        """Leaves it to the caller to open the gate of a slice. Returns whether it was shut."""

class Arrival:
    """A point in the stream of a device, for which threads can wait without the driver.

    It happens when the stream calls host_function(), or a thread happen().
    """

    def __init__(self) -> None: ...
    def happen(self) -> None:
        """The stream has come so far: what this supplies is supplied, threads are released.

        Only the first call of this or give_up() does anything.
        """

    def give_up(self) -> None:
        """It never will happen: releases the threads that wait, and supplies nothing."""

    def wait(self, timeout_s: float) -> bool:
        """Waits until it has happened or was given up; returns whether it is so."""

    def host_function(self) -> tuple[int, int]:
        """The address of a C function, and of what it must be called with once by any thread.

        It needs no interpreter.
        """

    def take_back(self, given: int) -> None:
        """The function will not be called with what host_function() has given."""

class GateWatch:
    """How many gates of a session were opened because their rounds had failed."""

    def __init__(self) -> None: ...
    @property
    def failed(self) -> int: ...

class Decision:
    """What a round of a variable does that was submitted before it was decided."""

    def squares(self, timeout_s: float | None = None) -> float:
        """Waits until all ranks' gradients are summed; the sum of the squares of the result.

        Of the average, if the tensor averages. It is exact but for one rounding, so all ranks get
        the same bits; infinity or NaN if the gradient is not finite. Raises if the round failed or
        if `timeout_s` ran out, and ConfigError for a round that is over without.
        """

    def decide(self, update: Sequence[float] | None = None) -> None:
        """Says what the round does, the same on all ranks; only the first time counts.

        `update` are the coefficients of the rule; None leaves value and slots as they are. Raises
        ConfigError for coefficients that are not finite.
        """

class Coordinator:
    """A coordinator inside this process."""

    def __init__(
        self,
        listen: str,
        settings: dict[str, str],
        *,
        repeated: bool = False,
        metrics: bool = False,
    ) -> None:
        """Listens on `listen` ("0.0.0.0:0" takes a free port). A token must be set.

        It serves one job: one run of it, after which servers end, or, if `repeated`, as many as
        its workers begin until `stop`. With `metrics` it tells Prometheus at metrics_port, if that
        is not 0.
        """

    @property
    def address(self) -> str:
        """HOST:PORT under which others reach it."""

    def wait(self) -> None:
        """Returns once its job is over; a signal that raises ends the wait."""

    def stop(self) -> None:
        """Stops listening and serving. May be repeated."""

class Seat:
    """This process' place in an elastic job, as long as it lives."""

    def __init__(self, settings: dict[str, str]) -> None:
        """Prepares to ask for a place in the job of `settings`; nothing is asked yet."""

    def ask(self) -> tuple[int, int, int, int, int] | None:
        """Waits for a place in the next generation; None if the job's work is done.

        A place is generation, rank, world size, local rank and local size. Raises StartError if
        too few workers come in time, saying how many did.
        """

    @property
    def lost(self) -> int:
        """How many processes of this one's generation are gone."""

    @property
    def newcomers(self) -> int:
        """How many processes the next generation would take in."""

    def leave(self, *, done: bool = False) -> None:
        """Gives the seat up; `done` if the job's work is. May be repeated."""

def serve(settings: dict[str, str]) -> None:
    """Runs a summation server until the job ends or a signal comes."""

def run_coordinator(listen: str, settings: dict[str, str]) -> None:
    """Runs a coordinator until a signal comes."""

def plan(request_json: str) -> str:
    """The plan for a cluster described in JSON, as JSON."""

def status(settings: dict[str, str], job: str | None = None) -> str:
    """The coordinator's view of its jobs, or of one, as JSON."""

def drain(who: str, settings: dict[str, str]) -> str:
    """Has the coordinator take the server of this number, or all of this host, out of all jobs.

    JSON: `drained` and `others`, each a list of servers with `member` and `host`.
    """

def tune(
    changes: dict[str, str],
    settings: dict[str, str],
    *,
    job: str | None = None,
    reset: bool = False,
) -> str:
    """Has the coordinator change settings of a running job, of the only one without `job`.

    JSON: `job`, the `epoch` from which on all ranks run with it, and `settings`: what may change,
    as it is then. Raises ConfigError, and changes nothing, for what cannot be had.
    """

def trace(settings: dict[str, str], job: str | None, steps: int, path: str) -> str:
    """Writes the last steps of a run, or of the only one, to a file for Perfetto.

    JSON: `job`, `steps` and `slices` in the file, `clock_error_s` by process, and `missing`, the
    members that did not answer.
    """

def read_trace(bytes: bytes) -> str:
    """What is in a file of `trace`: `run`, `slices`, `clock_error_s`, as JSON.

    StartError says what is wrong with any other bytes.
    """

def default_credit(gbps: float | None) -> int:
    """The credit in bytes where none is set, for machines the slowest of which carries `gbps`."""

def cut_bytes(
    partition_bytes: int, credit_bytes: int, tensor_bytes: int | None = None, servers: int = 1
) -> int:
    """How large partitions of a tensor are at most under a plan's two sizes.

    Without a tensor: of the largest that there could be. `servers` is how many of them sum.
    """

def settings() -> list[dict[str, str]]:
    """Every setting: name, env, unit, default, range, doc."""

def metrics() -> list[dict[str, str | list[str]]]:
    """Every metric: name, type (counter, gauge), of (coordinator, member, worker), the list of
    labels of its own, help."""

def check_environment(environment: dict[str, str]) -> None:
    """Raises ConfigError for the first setting that does not hold in such an environment."""

def machine_id() -> str:
    """What this machine is called when workers of one machine are recognized."""

def generate_token() -> str:
    """A new random token for a job."""

class LowRank:
    """A matrix of float32 as the product of two narrow ones, its factors.

    Arrays are contiguous and of float32: a matrix row after row, a factor column after column.
    What a method writes is its last argument, which nothing else may use meanwhile; other threads
    run. Raises ConfigError for arrays of other sizes.
    """

    def __init__(self, codec: str, rows: int, columns: int) -> None:
        """By a codec "powersgd", with its rank and seed.

        Raises ConfigError for another codec, and for a rank that exceeds rows or columns.
        """

    @property
    def start(self) -> int:
        """Rounds before the first that is summed by factors."""

    @property
    def left_len(self) -> int:
        """Elements of the left factor."""

    @property
    def right_len(self) -> int:
        """Elements of the right factor."""

    def refresh(self, tensor: int, round: int, right: np.ndarray) -> None:
        """Makes the right factor of the last round, or zeros, fit to begin a round with.

        All ranks have the same factor and get the same. `tensor` and `round` are numbers for which
        columns that are zero or not finite are drawn.
        """

    def left(self, matrix: np.ndarray, right: np.ndarray, left: np.ndarray) -> None:
        """`left = matrix * right`, which is summed over the ranks first."""

    def orthonormalize(self, left: np.ndarray) -> None:
        """Makes the columns of the summed left factor orthogonal and of length 1."""

    def right(self, matrix: np.ndarray, left: np.ndarray, right: np.ndarray) -> None:
        """`right = transpose(matrix) * left`, which is summed next."""

    def product(self, left: np.ndarray, right: np.ndarray, matrix: np.ndarray) -> None:
        """`matrix = left * transpose(right)`."""

    def residual(
        self, matrix: np.ndarray, left: np.ndarray, right: np.ndarray, residual: np.ndarray
    ) -> None:
        """`residual = matrix - left * transpose(right)`, with this rank's own right factor.

        0 where that is not finite.
        """

def codec(text: str, *, keeps: bool = True, draws: tuple[int, int] | None = None) -> str:
    """A codec with its arguments, or `auto` with its codecs, in canonical order.

    Unless it `keeps` anything from round to round, it is without error feedback. Its random numbers
    go on from `draws`, of codec_memory() in an earlier job, if it draws any. Raises ConfigError
    for an unknown codec or argument, and for momentum in one that keeps nothing.
    """

def codec_keeps(text: str) -> tuple[bool, bool, bool]:
    """Whether a codec keeps what it leaves out, whether momentum, and whether it draws numbers.

    Of `auto`, whether one of those does that it chooses from.
    """

def codecs() -> list[str]:
    """The names of all codecs."""

def register_codec(name: str, make: Callable[..., object]) -> None:
    """Has codecs of this name be those that `make` returns, of arguments that are texts.

    For workers and servers of this process that begin after that. ConfigError for a name that is
    taken, or has other characters than lower-case letters, digits and "_".
    """

def update_rules() -> dict[str, list[str]]:
    """The update rules, and the slots that each keeps beside the value, in their order."""

def update_coefficients() -> list[str]:
    """What the coefficients of an update are called, in their order.

    The rules take them as torch.optim does: "scale" multiplies the gradient before all else,
    "decay" is the L2 penalty, "shrink" multiplies the value, "keep" and "take" make the first
    average, "keep_square" and "take_square" the second, whose root is divided by "divisor";
    "epsilon" is added to a denominator, and "step" multiplies what is added to the value.
    """

def codec_rates(codec: str) -> tuple[float, float, float, float]:
    """How fast a codec is on this machine, measured once in a process: bytes of float32 that one
    core encodes, decodes, and decodes and adds in a second, in its cache; and by how much its code
    is smaller.

    Raises ConfigError, which names the codec or the argument, for what is none.
    """

def fabric_networks(
    provider: str | None = None, device: str | None = None
) -> tuple[str | None, list[tuple[str, str, int | None, bool]], str | None, int]:
    """What libfabric has on this machine: its version; the networks of `provider` and `device`
    (any by default), the best first, each with the names of its provider and device, bits a second
    if it says, and whether its hardware writes to memory itself (RDMA); why there is none, if so;
    and the bytes that a connection registers at each end.
    """

def fabric_device_memory() -> list[str]:
    """The providers of libfabric's that say that they can register memory of accelerators, such as
    GPUs (FI_HMEM); jobs place host memory only."""

def xla_handlers(
    version: tuple[int, int],
    start: Callable[[bytes, int], int],
    finish: Callable[[bytes, list[int], list[int], XlaPromise | None], None],
) -> tuple[object, object] | None:
    """Capsules by which programs of XLA start rounds, and wait for them.

    None if `version` of XLA's foreign function interface (major, minor) is not a known one.

    `start(text, address)` returns a number; `finish(text, numbers, addresses, promise)` puts the
    results at the addresses, and sets the promise if there is one.
    """

def instruction_set(dtype: str | None = None) -> str:
    """The kernels chosen on this processor, or those of them that sum a type.

    Raises ConfigError for a type that has none.
    """
