"""Licences of what is released: none but those that deploy/release/deny.toml allows."""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def licences(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "deploy" / "release"))
    import licences

    return licences


def test_every_crate_has_a_licence_that_is_allowed(licences: ModuleType) -> None:
    allow, released = licences.allowed(), licences.crates()
    refused = [
        f"{one.name} {one.version}: {one.licence}"
        for one in released
        if not licences.permits(one.licence, allow)
    ]
    assert len(released) > 50
    for machine in licences.MACHINES:
        assert set(licences.crates(machine)) <= set(released)
    assert not refused, f"{refused}: use other crates, or allow these in deploy/release/deny.toml"


def test_the_crates_are_those_of_the_machines_that_packages_are_built_for(
    licences: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = []

    def fails(command: list[str], **_: object) -> None:
        commands.append([one for one in command if "platform" in one])
        raise FileNotFoundError("cargo")

    monkeypatch.setattr(licences.subprocess, "run", fails)
    licences.crates.cache_clear()
    for machines in ((), ("aarch64",)):
        with pytest.raises(FileNotFoundError):
            licences.crates(*machines)
    both = [f"--filter-platform={name}-unknown-linux-gnu" for name in ("x86_64", "aarch64")]
    assert commands == [both, both[1:]]


def test_the_notices_name_every_crate_and_quote_what_it_asks_for(licences: ModuleType) -> None:
    released = licences.crates()
    text = licences.notices(released)
    assert not [one for one in released if f"{one.name} {one.version}: {one.licence}" not in text]
    assert "Permission is hereby granted, free of charge" in text
    # What has no notice of its own is a known and short list.
    assert {one.name for one in released if not one.notices()} <= {"tonic-prost"}


def test_crates_that_only_tests_need_are_not_released(licences: ModuleType) -> None:
    names = {one.name for one in licences.crates()}
    assert "rustls" in names and not names & {"proptest", "criterion", "loom"}


@pytest.mark.parametrize(
    ("licence", "permitted"),
    [
        ("MIT", True),
        ("MIT/Apache-2.0", True),
        ("GPL-3.0 OR MIT", True),
        ("GPL-3.0 AND MIT", False),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", True),
        ("(MIT OR Apache-2.0) AND GPL-3.0", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("Apache-2.0 WITH Other-exception", False),
        ("", False),
        ("(MIT", False),
    ],
)
def test_an_expression_of_licences_is_read_as_spdx_defines_it(
    licences: ModuleType, licence: str, permitted: bool
) -> None:
    allow = {"MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"}
    assert licences.permits(licence, allow) is permitted


def test_what_cargo_deny_reads_is_a_list_without_doubles() -> None:
    allow = tomllib.loads((ROOT / "deploy/release/deny.toml").read_text())["licenses"]["allow"]
    assert sorted(set(allow)) == allow
