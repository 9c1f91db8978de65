"""What the environment says besides Sumpter's own variables: the place that reads it in Python.

Launchers and libraries that people use already (torchrun, horovodrun, mpirun, srun, bpslaunch)
set variables of their own; the table in `_variables` says which setting each becomes. An argument
beats a setting's own variable, which beats these. Of the launchers, the first that states both a
rank and a number of workers decides; what others say of the same rank fills the gaps.
"""

import difflib
import logging
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sumpter import _byteps, _native
from sumpter._errors import ConfigError
from sumpter._variables import LAUNCHERS, TUNING, Launcher, Variable

_log = logging.getLogger("sumpter")

# Ports for jobs whose launcher names none: outside the range that Linux gives to clients.
_FIRST_PORT, _PORTS = 20_000, 10_000

# What all ranks of a job, and hardly those of another, find equal in their environments.
_JOB_MARKS = (
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("PMIX_NAMESPACE",),
    ("OMPI_MCA_ess_base_jobid",),
    ("PMI_JOBID",),
    ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
    ("DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"),
)

_OWN_PREFIX = "SUMPTER_"
# The only variables of this prefix that are not in the table, as they are none of a job.
_OF_TESTS = ("SUMPTER_SIM_SEED", "SUMPTER_SIM_SEEDS", "SUMPTER_SIM_LARGE_SEEDS")

# What Kubernetes sets in every pod for a Service of the pod's namespace: its name in capitals, and
# one of these. A Service whose name begins with `sumpter-` is no setting.
_SERVICE_LINK = re.compile(
    r"(\w+?)_(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)?)"
)

# What torchrun takes for its options, by which Kubeflow and others describe a job to it.
_AGENT = ("PET_NNODES", "PET_NPROC_PER_NODE")

_IDENTITY = ("rank", "world_size")
_PLACE = (*_IDENTITY, "local_rank", "local_size")
_KNOWN_PREFIXES = ("HOROVOD_", "BYTEPS_")


@dataclass
class Understood:
    """What an environment says to a process with certain arguments."""

    # By name of a setting; none that an argument or the setting's own variable gives.
    settings: dict[str, str] = field(default_factory=dict)
    # Host and port where rank 0 may serve; "" where unknown.
    master_host: str = ""
    master_port: str = ""
    rank: str = "0"
    world_size: str = "1"
    # Remarks for the log, worth a warning or not.
    warnings: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def read(given: Mapping[str, str]) -> Understood:
    """What this process' environment says besides `given`; remarks go to the log once each."""
    understood = understand(os.environ, given)
    _say(understood)
    return understood


def own_variable(name: str) -> str:
    """The text of a setting's own variable, or nothing."""
    return os.environ.get(_own_names()[name], "")


def rack(given: Mapping[str, str]) -> dict[str, str]:
    """The setting `rack` as the launcher of this process says it, for a server.

    Nothing if an argument or the setting's own variable gives it, or the launcher says nothing.
    """
    rows = [row for row in TUNING if row.setting == "rack"]
    if "rack" in given or own_variable("rack").strip():
        return {}
    said = {row.setting: _value(row, os.environ) for row in rows}
    return {name: text for name, text in said.items() if text is not None}


def misspelled() -> list[str]:
    """A sentence for each SUMPTER_* variable of this process that no setting reads."""
    return [_about_unknown(name, meant) for name, meant in unknown_variables(os.environ)]


def unknown_variables(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """SUMPTER_* variables that no setting reads, each with the one that is nearest, or ""."""
    known = [name for name in _own_names().values() if name.startswith(_OWN_PREFIX)]
    unknown = [
        name
        for name in sorted(environment)
        if name.startswith(_OWN_PREFIX) and name not in known and name not in _OF_TESTS
        if not _is_of_a_service(name, environment)
    ]
    return [(name, nearest(name, known, _OWN_PREFIX)) for name in unknown]


def _is_of_a_service(name: str, environment: Mapping[str, str]) -> bool:
    link = _SERVICE_LINK.fullmatch(name)
    return link is not None and f"{link[1]}_SERVICE_HOST" in environment


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """The known name that is nearest to a misspelled `name`, or ""."""
    # What all have in common would make any two alike.
    stems = [each.removeprefix(prefix) for each in known]
    found = difflib.get_close_matches(name.removeprefix(prefix), stems, n=1)
    return prefix + found[0] if found else ""


def cluster() -> _byteps.Cluster:
    """The BytePS job that this process' environment describes to `bpslaunch`."""
    read = _byteps.read_cluster(os.environ)
    return replace(read, local_size=_byteps.devices(os.environ)) if read.role == "worker" else read


def tuning() -> dict[str, str]:
    """The settings that are not about a process' place, for a server or a coordinator."""
    understood = Understood()
    understood.warnings += misspelled()
    _tune(os.environ, {}, understood)
    _say(understood)
    return understood.settings


def understand(environment: Mapping[str, str], given: Mapping[str, str]) -> Understood:
    """What an environment says to a process with the arguments `given`.

    Raises ConfigError, naming the variable, for a text that is not accepted, for launchers that
    contradict each other about one process, and for what Sumpter must not ignore.
    """
    understood = Understood()
    _tune(environment, given, understood)
    place = _place(environment, given, understood)
    if {**place, **given}.get("local_rank", "0") == "0":
        # Once a machine: what is set there is set for all its ranks.
        understood.warnings += [
            _about_unknown(name, meant) for name, meant in unknown_variables(environment)
        ]
    own = _own_names()
    understood.master_host = place.pop("master_host", "")
    understood.master_port = place.pop("master_port", "")
    for name, text in place.items():
        if name not in given and not environment.get(own[name], "").strip():
            understood.settings[name] = text
    place = {**place, **given}
    understood.rank = place.get("rank", "0")
    understood.world_size = place.get("world_size", "1")
    if "rank" in place and not understood.master_host:
        if place.get("local_size") == understood.world_size:
            understood.master_host = "127.0.0.1"
    if understood.master_host and not understood.master_port:
        understood.master_port = _port_of_job(environment)
    return understood


def _tune(environment: Mapping[str, str], given: Mapping[str, str], into: Understood) -> None:
    own = _own_names()
    for variable in TUNING:
        text = _value(variable, environment)
        if text is None:
            continue
        if not variable.setting:
            into.remarks.append(f"{variable.name} has no effect: {variable.note}")
        elif variable.setting not in given and not environment.get(own[variable.setting], ""):
            into.settings.setdefault(variable.setting, text)
    known = {variable.name for launcher in LAUNCHERS for variable in launcher.variables}
    known |= {variable.name for variable in TUNING}
    for name in sorted(environment):
        if name.startswith(_KNOWN_PREFIXES) and name not in known:
            into.remarks.append(f"{name} has no effect: Sumpter does not know it")


def _about_unknown(name: str, meant: str) -> str:
    advice = f"did you mean {meant}?" if meant else "`sumpter config` lists those there are"
    return f"{name} has no effect: no setting has this name; {advice}"


def _place(
    environment: Mapping[str, str], given: Mapping[str, str], into: Understood
) -> dict[str, str]:
    """What the launchers say about this process, those that agree with the first merged."""
    layouts = [(launcher, _layout(launcher, environment)) for launcher in LAUNCHERS]
    decisive = next((name for name, said in layouts if _is_complete(said)), None)
    if decisive is None:
        _byteps.check_worker(environment)
        _check_incomplete(environment, layouts, given)
        _check_agent(environment, given)
        return {name: text for _, said in reversed(layouts) for name, text in said.items()}
    chosen = dict(layouts)[decisive]
    _check_numbers(environment, decisive, chosen)
    place: dict[str, str] = {}
    earlier = True
    for launcher, said in layouts:
        earlier = earlier and launcher is not decisive
        if all(said.get(name, chosen[name]) == chosen[name] for name in _IDENTITY):
            place = {**said, **place}
        elif earlier:
            raise ConfigError(_contradiction(environment, launcher, said, decisive, chosen))
        elif _is_complete(said) and _is_suspicious(chosen, said):
            text = _contradiction(environment, decisive, chosen, launcher, said)
            into.warnings.append(f"{text}; the first counts")
    if any(given.get(name, chosen[name]) != chosen[name] for name in _IDENTITY):
        # Arguments make another process of this one: its place is theirs to say.
        return {name: text for name, text in place.items() if name not in _PLACE}
    return place


def _layout(launcher: Launcher, environment: Mapping[str, str]) -> dict[str, str]:
    said: dict[str, str] = {}
    if launcher.started(environment):
        for variable in launcher.variables:
            if variable.setting and variable.setting not in said:
                text = _value(variable, environment)
                if text is not None:
                    said[variable.setting] = text
    return said


def _value(variable: Variable, environment: Mapping[str, str]) -> str | None:
    try:
        return variable.read(environment)
    except ValueError as error:
        text = environment[variable.name]
        raise ConfigError(f"{variable.name} is {text!r}: it {error}") from None


def _is_complete(said: Mapping[str, str]) -> bool:
    return all(name in said for name in _IDENTITY)


def _is_suspicious(chosen: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether `chosen` is hardly a job within the other launcher's, as torchrun's in a Slurm step.

    Such a job has more ranks than the outer launcher started processes.
    """
    if not all(said[name].isdigit() for said in (chosen, other) for name in _IDENTITY):
        return True
    inner, outer = int(chosen["world_size"]), int(other["world_size"])
    return inner < outer or (inner == outer and chosen["rank"] != other["rank"])


def _check_numbers(
    environment: Mapping[str, str], launcher: Launcher, said: Mapping[str, str]
) -> None:
    for name in _PLACE:
        if name in said and not said[name].isdigit():
            raise ConfigError(
                f"{_variable(environment, launcher, name)} is {said[name]!r}: "
                "it must be a whole number"
            )
    for rank, size in (("local_rank", "local_size"), _IDENTITY):
        if rank in said and size in said and int(said[rank]) >= int(said[size]):
            raise ConfigError(
                f"{_variable(environment, launcher, rank)} is {said[rank]} and "
                f"{_variable(environment, launcher, size)} is {said[size]}: ranks count from 0"
            )


def _check_incomplete(
    environment: Mapping[str, str],
    layouts: list[tuple[Launcher, dict[str, str]]],
    given: Mapping[str, str],
) -> None:
    """Refuses half a statement, except torchrun's: rank and world_size have defaults."""
    for launcher, said in layouts[1:]:
        for name, other in (_IDENTITY, _IDENTITY[::-1]):
            if name in said and other not in {**said, **given} and not layouts[0][1].get(other):
                missing = next(v.name for v in launcher.variables if v.setting == other)
                raise ConfigError(
                    f"{_variable(environment, launcher, name)} is set but {missing} is not: "
                    f"{launcher.name} sets both, and without them the job's size is unknown"
                )


def _check_agent(environment: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Refuses a job of many processes that torchrun was to start and did not.

    Without its variables each process would be a job of one, and train alone.
    """
    if "world_size" in given or environment.get("WORLD_SIZE", "").strip():
        return
    for name in _AGENT:
        text = environment.get(name, "").strip()
        # The number of nodes may be a range, as 2:4.
        most = text.rpartition(":")[2]
        if most.isdigit() and int(most) > 1:
            raise ConfigError(
                f"{name} is {text}, but RANK and WORLD_SIZE are not set: the job is described to "
                "torchrun, which has not started this process; start the script by `torchrun "
                "SCRIPT` instead of python"
            )


def _contradiction(
    environment: Mapping[str, str],
    first: Launcher,
    said: Mapping[str, str],
    second: Launcher,
    other: Mapping[str, str],
) -> str:
    name = next(n for n in _IDENTITY if n in said and n in other and said[n] != other[n])
    return (
        f"{_variable(environment, first, name)} is {said[name]} and "
        f"{_variable(environment, second, name)} says {other[name]}: "
        "they contradict each other about this process"
    )


def _variable(environment: Mapping[str, str], launcher: Launcher, setting: str) -> str:
    """The variable by which a launcher states a setting here."""
    rows = [row for row in launcher.variables if row.setting == setting]
    return next((row.name for row in rows if environment.get(row.name)), rows[0].name)


def _port_of_job(environment: Mapping[str, str]) -> str:
    """A port that every rank of the job derives alike, and those of another job hardly.

    Without a mark of the job there is none: ranks of two jobs must not meet.
    """
    marks = [
        environment[name]
        for names in _JOB_MARKS
        if all(environment.get(name) for name in names)
        for name in names
    ]
    if not marks:
        return ""
    # Two are taken: torch's store and the coordinator.
    return str(_FIRST_PORT + zlib.crc32("/".join(marks).encode()) % (_PORTS // 2) * 2)


def _say(understood: Understood) -> None:
    for level, texts in (
        (logging.WARNING, understood.warnings),
        (logging.INFO, understood.remarks),
    ):
        for text in texts:
            if text not in _said:
                _said.add(text)
                _log.log(level, "%s", text)


def _own_names() -> dict[str, str]:
    return {row["name"]: row["env"] for row in _native.settings()}


_said: set[str] = set()
