"""What the command line tells a new user: help, settings, misspellings."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import HANG_S
from pods import eventually
from sumpter import _environment, _native, _packages
from sumpter.cli import main
from sumpter.cli.app import app
from sumpter.cli.groups import GROUPS
from sumpter.cli.settings import EXAMPLE


def sumpter(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sumpter", *arguments],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env={**os.environ, "COLUMNS": "80", **variables},
    )


@pytest.mark.parametrize("group", [(), ("bench",)])
def test_without_a_command_it_prints_its_help(group: tuple[str, ...]) -> None:
    bare, asked = sumpter(*group), sumpter(*group, "--help")
    assert (bare.returncode, bare.stderr) == (0, "")
    assert bare.stdout == asked.stdout
    assert bare.stdout.startswith("Usage: sumpter")
    assert len(bare.stdout.splitlines()) > 10


def test_help_has_every_command_under_one_heading() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(command.name for command in app.registered_commands)
    out = sumpter("--help").stdout
    headings = [out.index(f"\n{title}:\n") for title in GROUPS]
    assert headings == sorted(headings)
    for index, names in enumerate(GROUPS.values()):
        section = out[headings[index] : [*headings, len(out)][index + 1]]
        for name in names:
            assert f"\n  {name} " in section


class TestConfig:
    @pytest.mark.parametrize("name", ["credit_bytes", "SUMPTER_CREDIT_BYTES"])
    def test_one_setting_by_either_of_its_names(self, name: str) -> None:
        out = sumpter("config", name).stdout
        assert "credit_bytes  SUMPTER_CREDIT_BYTES" in out
        assert "partition_bytes  " not in out

    def test_a_misspelled_name_gets_the_nearest(self) -> None:
        result = sumpter("config", "credits_byte")
        assert result.returncode == 2
        assert "there is no setting credits_byte; did you mean credit_bytes?" in result.stderr

    def test_search_finds_settings_by_what_they_are_about(self) -> None:
        out = sumpter("config", "--search", "Silence dead").stdout
        assert "peer_timeout_s" in out
        assert "credit_bytes" not in out
        nothing = sumpter("config", "--search", "xyzzy")
        assert (nothing.returncode, nothing.stdout) == (2, "")

    def test_a_narrow_terminal_gets_paragraphs_with_every_name_and_word(self) -> None:
        out = sumpter("config").stdout
        assert max(map(len, out.splitlines())) <= 80
        assert len(out.splitlines()) < 330
        words = " ".join(out.split())
        for row in _native.settings():
            assert f"{row['name']} {row['env']}" in words
            assert " ".join(row["doc"].split()) in words

    def test_a_wide_terminal_gets_a_table(self) -> None:
        lines = sumpter("config", COLUMNS="1000").stdout.splitlines()
        assert len(lines) == 1 + len(_native.settings())

    def test_the_examples_work(self) -> None:
        for line in filter(None, EXAMPLE.splitlines()):
            assert sumpter(*line.partition("sumpter ")[2].split()).returncode == 0


class TestMisspelledVariables:
    WRONG = "SUMPTER_CREDITS_BYTES"
    SAID = f"{WRONG} has no effect: no setting has this name; did you mean SUMPTER_CREDIT_BYTES?"

    def test_every_command_warns_and_goes_on(self) -> None:
        for arguments in (["token"], ["config", "rank"], ["plan", "-n", "2"]):
            result = sumpter(*arguments, **{self.WRONG: "1MiB"})
            assert (result.returncode, result.stderr) == (0, f"warning: {self.SAID}\n")

    def test_a_worker_warns(self) -> None:
        script = "import sumpter; sumpter.init(); sumpter.shutdown()"
        result = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=HANG_S,
            env={**os.environ, self.WRONG: "1MiB"},
        )
        assert result.returncode == 0, result.stderr
        assert result.stderr.count(self.SAID) == 1

    def test_only_one_rank_of_a_machine_warns(self) -> None:
        place = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        for local_rank, count in (("0", 1), ("1", 0)):
            environment = {**place, "LOCAL_RANK": local_rank, self.WRONG: "1MiB"}
            assert _environment.understand(environment, {}).warnings.count(self.SAID) == count

    def test_a_server_of_bytepss_roles_warns(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv(self.WRONG, "1MiB")
        monkeypatch.setattr(_environment, "_said", set())
        with caplog.at_level(logging.WARNING, logger="sumpter"):
            _environment.tuning()
        assert self.SAID in caplog.messages

    def test_no_known_variable_is_warned_about(self) -> None:
        known = {row["env"]: "" for row in _native.settings()}
        assert _environment.unknown_variables({**known, "SUMPTER_SIM_SEED": "1"}) == []
        assert _environment.unknown_variables({"SUMPTER_QQQQQ": "1"}) == [("SUMPTER_QQQQQ", "")]

    def test_what_kubernetes_sets_for_a_service_is_not_warned_about(self) -> None:
        service = {
            "SUMPTER_COORDINATOR_SERVICE_HOST": "10.0.0.7",
            "SUMPTER_COORDINATOR_SERVICE_PORT": "7700",
            "SUMPTER_COORDINATOR_SERVICE_PORT_CONTROL": "7700",
            "SUMPTER_COORDINATOR_PORT": "tcp://10.0.0.7:7700",
            "SUMPTER_COORDINATOR_PORT_7700_TCP": "tcp://10.0.0.7:7700",
            "SUMPTER_COORDINATOR_PORT_7700_TCP_ADDR": "10.0.0.7",
        }
        assert _environment.unknown_variables(service) == []
        # Without the first it is no Service's.
        alone = {"SUMPTER_COORDINATOR_PORT": "7700"}
        assert len(_environment.unknown_variables(alone)) == 1


class TestMissingPackages:
    """In a process that cannot find torch, as after `pip install sumpter`."""

    WITHOUT = (
        "import sys, importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'torch' else find(name, *more)\n"
        "class Nothing:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.partition('.')[0] == 'torch':\n"
        "            raise ModuleNotFoundError(f\"No module named '{name}'\", name=name)\n"
        "sys.meta_path.insert(0, Nothing())\n"
    )

    def run(self, code: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", self.WITHOUT + code]
        return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)

    def test_a_command_that_needs_one_says_what_to_install(self) -> None:
        result = self.run(
            "from sumpter.cli import main, plugins\n"
            "plugins.load = lambda name: __import__('torch')\n"
            "main(['record', 'train.py'])"
        )
        assert result.returncode == 1
        assert len(result.stderr.splitlines()) == 1, result.stderr
        assert "pip install 'sumpter[torch]'" in result.stderr

    def test_an_import_names_what_it_needs_and_the_remedy(self) -> None:
        result = self.run("import sumpter.torch")
        assert result.stderr.splitlines()[-1] == (
            "ImportError: sumpter.torch needs torch, which is not installed: "
            "pip install 'sumpter[torch]'"
        )

    def test_an_import_error_of_something_else_keeps_its_traceback(self) -> None:
        error = ModuleNotFoundError("No module named 'mine'", name="mine")
        assert _packages.missing(error) is None
        assert _packages.missing(ImportError("broken", name="sumpter")) is None


class TestCompletion:
    """What the shell asks the command by the protocol of its completion script."""

    @staticmethod
    def completed(*words: str) -> list[str]:
        asked = {"_SUMPTER_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(("sumpter", *words))}
        result = sumpter(**asked, COMP_CWORD=str(len(words)))
        assert (result.returncode, result.stderr) == (0, "")
        return result.stdout.split()

    def test_commands_and_their_options_are_completed(self) -> None:
        assert self.completed("ru") == ["run"]
        assert self.completed("bug") == ["bug-report"]
        assert {"--min-workers", "--machines"} <= set(self.completed("run", "--m"))

    def test_commands_of_the_laboratory_are_completed(self) -> None:
        assert self.completed("bench", "em") == ["emulate"]
        assert self.completed("bench", "emulate", "em") == []
        assert self.completed("whatif", "wh") == []

    def test_names_of_settings_are_completed(self) -> None:
        names = [row["name"] for row in _native.settings()]
        assert self.completed("config", "credit") == ["credit_bytes"]
        assert self.completed("config", "SUMPTER_CREDIT") == ["SUMPTER_CREDIT_BYTES"]
        assert self.completed("config", "xyzzy") == []
        assert self.completed("config", "pe") == [name for name in names if name.startswith("pe")]

    def test_bash_completes_by_the_script_that_is_shown(self, tmp_path: Path) -> None:
        asked = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
        shown = sumpter("--show-completion", "bash", **asked)
        assert (shown.returncode, shown.stderr) == (0, "")
        (tmp_path / "sumpter").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sumpter "$@"\n')
        (tmp_path / "sumpter").chmod(0o755)
        press = """
            COMP_WORDS=(sumpter conf) COMP_CWORD=1
            read -ra registered <<< "$(complete -p sumpter)"
            "${registered[-2]}" sumpter conf sumpter
            echo "${COMPREPLY[@]}"
        """
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        command = ["bash", "-c", shown.stdout + press]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert (done.stdout, done.stderr) == ("config\n", "")


class Terminal(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


WAITS = [
    (("trace", "--steps", "3"), "trace", "collecting 3 steps from every worker and server"),
    (("tune", "--set", "credit=4MiB"), "tune", "waiting for the coordinator"),
    (("drain", "cpu-3"), "drain", "waiting for the coordinator"),
    (("status", "--json"), "status", "waiting for the coordinator"),
    (("jobs",), "status", "waiting for the coordinator"),
]


@pytest.mark.parametrize(("arguments", "asks", "says"), WAITS, ids=lambda one: str(one[0]))
def test_what_a_command_waits_for_is_shown_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], asks: str, says: str
) -> None:
    terminal = Terminal()

    def answer(*_: object, **__: object) -> str:
        eventually(lambda: says in terminal.getvalue(), terminal.getvalue)
        raise _native.PeerLostError("the coordinator went away")

    monkeypatch.setattr(_native, asks, answer)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(SystemExit):
        main(arguments)
    # Nothing of it is left: its line is erased before the error is written.
    assert terminal.getvalue().rpartition("\x1b[2K")[2].count(says) == 0
    assert "error: " in terminal.getvalue().rpartition(says)[2]


@pytest.mark.parametrize(("arguments", "asks", "says"), WAITS, ids=lambda one: str(one[0]))
def test_nothing_of_it_is_in_a_file(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    asks: str,
    says: str,
) -> None:
    def answer(*_: object, **__: object) -> str:
        raise _native.PeerLostError("the coordinator went away")

    monkeypatch.setattr(_native, asks, answer)
    with pytest.raises(SystemExit):
        main(arguments)
    assert capsys.readouterr() == ("", "error: the coordinator went away\n")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--help",), 0),
        (("config",), 0),
        (("plan", "-n", "4", "-s", "2"), 0),
        (("run", "-n", "2", "-s", "1", "--dry-run", "--", "true"), 0),
        (("plan",), 2),
        (("jobs", "--coordinator", "127.0.0.1:1", "--token", "short"), 2),
    ],
    ids=lambda one: str(one[0]) if isinstance(one, tuple) else None,
)
def test_a_pipe_gets_no_colours(arguments: tuple[str, ...], code: int) -> None:
    result = sumpter(*arguments, TERM="xterm-256color", COLORTERM="truecolor")
    assert result.returncode == code, result.stderr
    assert result.stdout or result.stderr
    assert "\x1b" not in result.stdout + result.stderr
