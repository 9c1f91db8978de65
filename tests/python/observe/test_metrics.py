"""Metrics: what the endpoints export, and whether dashboard, alerts and documentation fit it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard as GrafanaDashboard
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from jobs import TOKEN, WORKERS
from sumpter import _native
from sumpter.cli.settings import metrics_as_markdown
from sumpter.launch.attendant import free_port

ROOT = Path(__file__).resolve().parents[3]
MONITORING = ROOT / "examples" / "monitoring"
PAGE = ROOT / "docs" / "user" / "metrics.md"
PATIENCE_S = 120.0

# Labels of every member's series, beside those of the metric itself; and what Prometheus adds.
MEMBER_LABELS = {"job_name", "role", "host", "rank", "member"}
TARGET_LABELS = {"job", "instance"}
OTHERS_METRICS = {"up", "ALERTS"}

PROMTOOL = "promtool is missing, so this checks nothing: apt-get install prometheus"
LINTER = (
    "dashboard-linter is missing, so this checks nothing: "
    "go install github.com/grafana/dashboard-linter@latest"
)


def environment(**variables: str) -> dict[str, str]:
    foreign = ("SUMPTER_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")
    own = {name: text for name, text in os.environ.items() if not name.startswith(foreign)}
    return {**own, "SUMPTER_TOKEN": TOKEN, "OMP_NUM_THREADS": "1", **variables}


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        kind = answer.headers["content-type"]
        assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        return answer.read().decode()


def families(text: str) -> dict[str, Metric]:
    """The families of a scrape, read by another implementation of the format."""
    return {family.name: family for family in text_string_to_metric_families(text)}


def series(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def values(text: str, name: str, **labels: str) -> list[float]:
    wanted = set(labels.items())
    return [value for (n, own), value in series(text).items() if n == name and wanted <= own]


def eventually(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            if holds():
                return
        except urllib.error.URLError:
            pass
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def two_ports() -> int:
    """The first of two free ports in a row: a worker adds its local rank."""
    while True:
        port = free_port()
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port + 1))
            return port


class Cluster:
    """A coordinator, a server and two workers, each with an endpoint of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.over = folder / "over"
        self.address = f"127.0.0.1:{free_port()}"
        self.coordinator_port, self.server_port = free_port(), free_port()
        self.worker_port = two_ports()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        cli = ("-m", "sumpter")
        listen = ("--listen", self.address, "--metrics-port", str(self.coordinator_port))
        self.start("coordinator", *cli, "coordinator", *listen)
        serve = ("serve", "--join", self.address, "--metrics-port", str(self.server_port))
        bandwidth = {"SUMPTER_BANDWIDTH_GBPS": "10"}
        self.start("server", *cli, *serve, "--lanes", "1", SUMPTER_MACHINE="cpu", **bandwidth)
        for rank in ("0", "1"):
            variables = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": "2",
                "LOCAL_WORLD_SIZE": "2",
                "SUMPTER_JOB": "red",
                "SUMPTER_SERVERS": "1",
                "SUMPTER_MACHINE": f"gpu{rank}",
                "SUMPTER_RACK": f"rack{rank}",
                "SUMPTER_COORDINATOR": self.address,
                "SUMPTER_METRICS_PORT": str(self.worker_port),
                "SUMPTER_START_TIMEOUT_S": str(PATIENCE_S),
            }
            script = (str(WORKERS["metered.py"]), str(self.over))
            self.start(f"worker{rank}", *script, **variables, **bandwidth)

    def start(self, name: str, *command: str, **variables: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                (sys.executable, *command), env=environment(**variables), stdout=log, stderr=log
            )

    def end_job(self) -> None:
        self.over.touch()
        for rank in ("0", "1"):
            code = self.processes[f"worker{rank}"].wait(PATIENCE_S)
            assert code == 0, (self.folder / f"worker{rank}.log").read_text()

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


def everyone_has_reported(text: str) -> bool:
    rounds = values(text, "sumpter_rounds_total")
    memory = values(text, "sumpter_run_memory_bytes", job_name="red")
    return len(rounds) == 2 and min(rounds) > 2 and len(memory) == 1 and memory[0] > 0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("metered")) as made:
        yield made


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    made = Cluster(folder)
    try:
        eventually(lambda: everyone_has_reported(scrape(made.coordinator_port)))
        yield made
    finally:
        made.stop()


def test_a_coordinator_tells_of_its_job_and_all_members_as_they_go_on(cluster: Cluster) -> None:
    text = scrape(cluster.coordinator_port)
    assert values(text, "sumpter_job_workers", job_name="red") == [2]
    assert values(text, "sumpter_job_machines", job_name="red", kind="gpu") == [2]
    assert values(text, "sumpter_job_machines", job_name="red", kind="cpu") == [1]
    optimum = values(text, "sumpter_job_optimum_goodput_bytes_per_second")
    assert optimum == pytest.approx([1.25e9])
    assert len(values(text, "sumpter_lane_memory_bytes", role="server")) == 1
    for rank in ("0", "1"):
        red = {"job_name": "red", "rank": rank}
        busy = values(text, "sumpter_busy_seconds_total", **red)[0]
        waited = sum(values(text, "sumpter_waiting_seconds_total", **red))
        assert 0 < waited <= busy + 0.1
    grows = (
        "sumpter_rounds_total",
        "sumpter_tensor_bytes_total",
        "sumpter_transferred_bytes_total",
        "sumpter_lane_summed_bytes_total",
        "sumpter_busy_seconds_total",
    )

    def have_grown() -> bool:
        later = scrape(cluster.coordinator_port)
        return all(sum(values(later, name)) > sum(values(text, name)) for name in grows)

    eventually(have_grown)


def test_the_endpoint_tells_what_the_table_says_and_nothing_else(cluster: Cluster) -> None:
    table = {str(row["name"]): row for row in _native.metrics()}
    told = {}
    for port in (cluster.coordinator_port, cluster.server_port, cluster.worker_port):
        for family in families(scrape(port)).values():
            for sample in family.samples:
                row = table[sample.name]
                assert family.type == row["type"] and family.documentation == row["help"]
                allowed = {*row["labels"], *MEMBER_LABELS}
                assert set(row["labels"]) <= set(sample.labels) <= allowed, sample
                told[sample.name] = family
    assert set(told) == set(table)


def test_servers_and_workers_tell_of_themselves_alone(cluster: Cluster) -> None:
    roles = {
        cluster.server_port: {("server", None)},
        cluster.worker_port: {("worker", "0")},
        cluster.worker_port + 1: {("worker", "1")},
    }
    for port, expected in roles.items():
        labels = [dict(own) for _, own in series(scrape(port))]
        assert {(own["role"], own.get("rank")) for own in labels} == expected


def test_promtool_finds_nothing_wrong_with_the_exposition(cluster: Cluster) -> None:
    promtool = shutil.which("promtool") or pytest.skip(PROMTOOL)

    class Scraped:
        def collect(self) -> Iterator[Metric]:
            yield from families(scrape(cluster.coordinator_port)).values()

    # promtool reads the older text format only.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Scraped())
    checked = subprocess.run(
        (promtool, "check", "metrics"), input=generate_latest(registry), capture_output=True
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_top_prints_once_without_a_terminal_and_as_json(cluster: Cluster) -> None:
    command = (sys.executable, "-m", "sumpter", "top", "--coordinator", cluster.address)
    plain = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    assert "red  running  workers 2/2  n 2  k 1" in plain.stdout
    assert "Servers" in plain.stdout and plain.stderr == ""
    narrow = subprocess.run(
        command, env=environment(COLUMNS="40"), capture_output=True, text=True, check=True
    )
    assert max(map(len, narrow.stdout.splitlines())) <= 40
    command = (*command, "--json")
    text = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    view = json.loads(text.stdout)
    job = view["jobs"][0]
    assert (job["name"], job["n"], job["k"]) == ("red", 2, 1)
    assert 0 < job["optimum_share"] < 1.1 and job["goodput_gbps"] > 0
    assert [member["number"] for member in job["members"]] == [0, 1]
    assert view["servers"][0]["summed_per_s"] > 0


def test_a_port_in_use_is_one_line_at_the_start(cluster: Cluster) -> None:
    command = ("serve", "--join", cluster.address, "--metrics-port", str(cluster.server_port))
    done = subprocess.run(
        (sys.executable, "-m", "sumpter", *command),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    expected = f"error: metrics: 127.0.0.1:{cluster.server_port} is in use"
    assert done.returncode == 1 and done.stderr.startswith(expected)
    assert len(done.stderr.splitlines()) == 1


def test_the_series_of_a_job_go_away_with_it(tmp_path: Path) -> None:
    with running(tmp_path) as cluster:
        port = cluster.coordinator_port
        assert 'job_name="red"' in scrape(port)
        cluster.end_job()
        eventually(lambda: values(scrape(port), "sumpter_jobs_over_total", outcome="ended") == [1])
        left = scrape(port)
    assert "job_name" not in left and 'role="worker",' not in left
    assert values(left, "sumpter_lane_memory_bytes", role="server") != []
    assert values(left, "sumpter_members_lost_total", role="worker") == [0]


@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_whole_job_is_told_of_while_it_runs(tmp_path: Path, by: str) -> None:
    port, over = free_port(), tmp_path / "over"
    option = ("--metrics-port", str(port)) if by == "option" else ()
    variables = {} if option else {"SUMPTER_METRICS_PORT": str(port)}
    command = ("run", "-n", "2", "-s", "1", *option, "--")
    script = (sys.executable, str(WORKERS["metered.py"]), str(over))
    log = (tmp_path / "log").open("wb")
    job = subprocess.Popen(
        (sys.executable, "-m", "sumpter", *command, *script),
        env=environment() | variables,
        stdout=log,
        stderr=log,
    )
    try:
        eventually(lambda: min(values(scrape(port), "sumpter_rounds_total"), default=0) > 2)
        assert values(scrape(port), "sumpter_job_servers") == [1]
        over.touch()
        assert job.wait(PATIENCE_S) == 0, (tmp_path / "log").read_text()
    finally:
        job.kill()
        job.wait()
        log.close()


def test_the_page_has_the_table_of_metrics() -> None:
    table = PAGE.read_text().split("<!-- table -->\n")[1].split("<!-- end of table -->")[0]
    assert table == metrics_as_markdown(), "put the output of `sumpter config --metrics` there"


def dashboard() -> dict:
    return json.loads((MONITORING / "dashboard.json").read_text())


def panels() -> list[dict]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def rules() -> list[dict]:
    document = yaml.safe_load((MONITORING / "rules.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def expressions() -> list[tuple[str, str]]:
    """Every expression with where it stands."""
    found = [(p["title"], target["expr"]) for p in panels() for target in p["targets"]]
    found += [
        (variable["name"], re.sub(r"^label_values\((.*), \w+\)$", r"\1", variable["definition"]))
        for variable in dashboard()["templating"]["list"]
        if variable["type"] == "query"
    ]
    found += [(rule.get("alert") or rule["record"], rule["expr"]) for rule in rules()]
    cells = re.findall(r"^\| [^|]+ \| `([^`]+)` \|$", PAGE.read_text(), re.MULTILINE)
    found += [("docs/user/metrics.md", cell) for cell in cells if "sumpter_" in cell]
    return found


def test_expressions_use_only_metrics_and_labels_that_there_are() -> None:
    table = {str(row["name"]): row for row in _native.metrics()}
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    assert len(expressions()) > 30
    for where, text in expressions():
        bare = re.sub(r'"[^"]*"', '""', text)
        names = re.findall(r"\bsumpter[a-z_:]+\b", bare)
        assert names or set(re.findall(r"\w+", bare)) & OTHERS_METRICS, where
        for name in names:
            assert name in table or name in recorded, f"{where}: there is no {name}"
        for name, selector in re.findall(r"\b(sumpter_[a-z_]+)\{([^}]*)\}", bare):
            used = set(re.findall(r"(\w+)\s*=?[=!]~?", selector))
            known = {*table[name]["labels"], *MEMBER_LABELS, *TARGET_LABELS}
            assert used <= known, f"{where}: {name} has no {used - known}"
        for name in re.findall(r"(?:rate|increase)\((sumpter_[a-z_]+)", bare):
            assert table[name]["type"] == "counter", f"{where}: the rate of a gauge, {name}"


def test_every_metric_that_people_were_promised_is_shown() -> None:
    shown = " ".join(expression for _, expression in expressions())
    unseen = {str(row["name"]) for row in _native.metrics() if str(row["name"]) not in shown}
    # A person looks these up when the dashboard has raised a question.
    assert unseen == {
        "sumpter_plan_changes_total",
        "sumpter_jobs_over_total",
        "sumpter_job_workers_wanted",
        "sumpter_job_machines",
        "sumpter_job_tensors",
        "sumpter_compressed_tensors",
        "sumpter_skipped_blocks_total",
        "sumpter_rack_hubs",
        "sumpter_rack_aggregates_bytes_total",
        "sumpter_member_rack",
        "sumpter_member_uptime_seconds",
        "sumpter_colocated_bytes_total",
        "sumpter_step",
        "sumpter_pauses_total",
        "sumpter_event_loops",
        "sumpter_placed_connections_total",
        "sumpter_placed_bytes_total",
        "sumpter_registered_regions_total",
        "sumpter_queued_partitions",
        "sumpter_lane_partitions_total",
        "sumpter_lane_memory_bytes",
    }


def test_panels_say_what_they_show_and_do_not_overlap() -> None:
    everything = dashboard()["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    places = set()
    for panel in everything:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        rows, columns = range(grid["y"], grid["y"] + grid["h"]), range(grid["w"])
        place = {(y, grid["x"] + x) for y in rows for x in columns}
        assert not places & place, panel["title"]
        places |= place
    for panel in panels():
        assert panel["title"] and panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            ranges = re.findall(r"\[([^\]]+)\]", target["expr"])
            assert set(ranges) <= {"$__rate_interval"}, panel["title"]


def test_alerts_say_what_to_do() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len({alert["alert"] for alert in alerts}) == len(alerts) >= 6
    for alert in alerts:
        assert alert["labels"]["severity"] in {"warning", "critical"}
        assert alert["annotations"]["summary"] and alert["annotations"]["description"]


@pytest.mark.parametrize(
    "arguments",
    (
        ("check", "rules", "rules.yml"),
        ("test", "rules", "rules.test.yml"),
        ("check", "config", "prometheus.yml"),
    ),
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_promtool_accepts_the_rules(arguments: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool") or pytest.skip(PROMTOOL)
    done = subprocess.run((promtool, *arguments), cwd=MONITORING, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tested() -> None:
    tested = (MONITORING / "rules.test.yml").read_text()
    missing = [rule["alert"] for rule in rules() if "alert" in rule and rule["alert"] not in tested]
    assert missing == []


def test_grafanas_own_schema_keeps_every_field_of_the_dashboard() -> None:
    plugins.register_default_plugins()
    understood = json.loads(JSONEncoder().encode(GrafanaDashboard.from_json(dashboard())))
    variables = dashboard()["templating"]["list"]
    # The text that Grafana's editor shows for a query; the schema has the query alone.
    known = {f"templating/list/{i}/definition" for i in range(len(variables))}
    assert set(lost(dashboard(), understood)) <= known


def lost(written: object, understood: object, path: str = "") -> Iterator[str]:
    """Paths of what is in one JSON document and not, or not the same, in another."""
    match written, understood:
        case dict(), dict():
            pairs = ((str(key), value, understood.get(key)) for key, value in written.items())
        case list(), list() if len(written) == len(understood):
            both = zip(written, understood, strict=True)
            pairs = ((str(i), *one) for i, one in enumerate(both))
        case _:
            if written != understood:
                yield path
            return
    for key, value, other in pairs:
        yield from lost(value, other, f"{path}/{key}".removeprefix("/"))


def test_a_field_that_grafana_does_not_know_is_found() -> None:
    assert list(lost({"a": [{"b": 1, "c": 2}], "d": 3}, {"a": [{"b": 1}], "d": 3})) == ["a/0/c"]
    assert list(lost({"a": [1, 2]}, {"a": [1]})) == ["a"]


def test_grafanas_linter_accepts_the_dashboard() -> None:
    linter = shutil.which("dashboard-linter") or pytest.skip(LINTER)
    command = (linter, "lint", "--strict", str(MONITORING / "dashboard.json"))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
