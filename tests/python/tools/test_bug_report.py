"""`sumpter bug-report`: what is packed, and that no secret is."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sumpter import _native
from sumpter._failure import Failure
from sumpter.cli import main
from sumpter.doctor import archive
from sumpter.doctor.archive import HIDDEN, Redaction

TOKEN = "a-token-for-tests-0123456789"
PASSWORD = "correct-horse-battery"


def packed(path: Path) -> dict[str, str]:
    """The files of an archive without its folder."""
    with tarfile.open(path) as archived:
        found = {}
        for member in archived.getmembers():
            assert member.isfile() and member.mode == 0o600
            file = archived.extractfile(member)
            assert file is not None
            found[member.name.partition("/")[2]] = file.read().decode()
    return found


def report(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["bug-report", "--no-self-test", *arguments])
    return int(ended.value.code or 0)


def test_secrets_are_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUMPTER_TOKEN", TOKEN)
    monkeypatch.setenv("NCCL_PASSWORD", PASSWORD)
    monkeypatch.setenv("SUMPTER_PARTITION_BYTES", "4MiB")
    logs = tmp_path / "logs"
    (logs / "deeper").mkdir(parents=True)
    (logs / "worker-0.log").write_text(f"started with {TOKEN}\nloss 0.25\n")
    (logs / "deeper" / "other.log").write_text(
        f"password: {PASSWORD}x\nAuthorization: Bearer abcdef.ghi\nhttp://me:hunter22@host/\n"
    )
    (logs / "link.log").symlink_to("/etc/passwd")
    file = tmp_path / "report.tar.gz"
    assert report("-o", str(file), "--log-dir", str(logs)) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    found = packed(file)
    assert set(found) == {
        *("README.txt", "doctor.json", "settings.txt", "environment.txt"),
        *("logs/worker-0.log", "logs/deeper/other.log"),
    }
    for text in found.values():
        for secret in (TOKEN, PASSWORD, "abcdef.ghi", "hunter22"):
            assert secret not in text
    assert found["logs/worker-0.log"] == f"started with {HIDDEN}\nloss 0.25\n"
    assert f"http://me:{HIDDEN}@host/" in found["logs/deeper/other.log"]
    assert "partition_bytes = 4MiB" in found["settings.txt"]
    assert f"NCCL_PASSWORD={HIDDEN}" in found["environment.txt"]
    findings = json.loads(found["doctor.json"])
    assert findings["Versions"][0]["check"] == "sumpter"
    for name in found:
        assert name == "README.txt" or f"{name}: " in found["README.txt"]


@pytest.mark.parametrize(
    ("line", "cleaned"),
    [
        ('{"token":"abcdef0123456789abc", "n":1}', f'{{"token":"{HIDDEN}", "n":1}}'),
        ('{"api_key": "sk-abc123"}', f'{{"api_key": "{HIDDEN}"}}'),
        ('{"token": null}', '{"token": null}'),
        ("{'Authorization': 'Bearer hf_abcdef'}", f"{{'Authorization': '{HIDDEN}'}}"),
        ("Authorization: token ghp_secret", f"Authorization: {HIDDEN}"),
        ('password="my secret phrase" host=a', f'password="{HIDDEN}" host=a'),
        ('password="cut at the en', f'password="{HIDDEN}"'),
        ("redis://:hunter22@host/", f"redis://:{HIDDEN}@host/"),
        ("https://ghp_secret@github.com/x", f"https://{HIDDEN}@github.com/x"),
        ("sumpter run --token abcdef -n 2", f"sumpter run --token {HIDDEN} -n 2"),
        ("train.py --password hunter22", f"train.py --password {HIDDEN}"),
        ("train.py --hf-token hf_abcdef", f"train.py --hf-token {HIDDEN}"),
        ("train.py --api-key=sk-abc", f"train.py --api-key={HIDDEN}"),
        ("encryption_key=abcdef", f"encryption_key={HIDDEN}"),
        ("--token-file job.token", "--token-file job.token"),
        ("--tokenizer gpt2", "--tokenizer gpt2"),
        ("--token-budget 5", "--token-budget 5"),
    ],
)
def test_values_that_are_called_secret_are_hidden(line: str, cleaned: str) -> None:
    assert Redaction([]).clean(line.encode()).decode() == cleaned


def test_variables_of_others_are_left_out() -> None:
    entry = archive.environment_entry({"HOME": "/tmp", "MY_KEY": "x", "RANK": "1"})
    assert entry.content == b"RANK=1\n"


def test_the_status_of_a_job_is_packed_or_why_it_is_missing(tmp_path: Path) -> None:
    coordinator = _native.Coordinator("127.0.0.1:0", {"token": TOKEN, "world_size": "1"})
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN + "\n")
    ways = ["--coordinator", coordinator.address, "--token-file", str(token_file)]
    try:
        file = tmp_path / "with-status.tar.gz"
        assert report("-o", str(file), *ways) == 0
        assert json.loads(packed(file)["status.json"]) is not None
    finally:
        coordinator.stop()
    file = tmp_path / "without-status.tar.gz"
    assert report("-o", str(file), *ways) == 0
    found = packed(file)
    assert coordinator.address in found["status.txt"]
    assert all(TOKEN not in text for text in found.values())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-o", "/nowhere/x.tar.gz"], "there is no directory /nowhere"),
        (["-o", os.devnull], "it is there already"),
        (["--log-dir", "/nowhere"], "cannot read the logs in /nowhere: it is no directory"),
        (["--coordinator", "h:1", "--token-file", "/nowhere"], "cannot read the token's file"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(*arguments) in (1, 2)
    assert said in " ".join(capsys.readouterr().err.split())


def test_of_a_large_log_the_end_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LOG_BYTES", 10)
    monkeypatch.setattr(archive, "LOG_FILES", 1)
    (tmp_path / "old.log").write_text("old")
    os.utime(tmp_path / "old.log", (1, 1))
    (tmp_path / "new.log").write_text("0123456789abcdef")
    new, left = archive.log_entries(tmp_path)
    assert (new.name, new.content) == ("logs/new.log", b"6789abcdef")
    assert b"1 older file" in left.content
    with pytest.raises(Failure, match="cannot write"):
        archive.write(tmp_path / "old.log", [], Redaction([]))


@given(
    st.text(st.characters(codec="ascii", exclude_categories=("C",)), max_size=40),
    st.text("abcdefXYZ0123456789+/=_-", min_size=8, max_size=40),
    st.text(st.characters(codec="ascii", exclude_categories=("C",)), max_size=40),
)
def test_a_known_secret_is_found_wherever_it_stands(before: str, secret: str, after: str) -> None:
    cleaned = Redaction([secret]).clean(f"{before}{secret}{after}".encode()).decode()
    assert secret not in cleaned or secret in before + after or secret in HIDDEN
