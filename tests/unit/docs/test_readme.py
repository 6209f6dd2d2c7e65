"""The README says what the code does: settings, reasons, make targets."""

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from ops.aggregator.settings import AggregatorSettings
from producer.failures.remedies import FLAG_REMEDIES, REMEDIES
from workers.contract.schema import REASONS
from workers.contract.settings import FleetSettings, setting_rows
from workers.quality import FLAGS
from workers.settings import ELSEWHERE, WorkerSettings

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


KINDS = (FleetSettings, WorkerSettings, AggregatorSettings)


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_stands_in_the_table_with_its_default_and_meaning(kind: type[msgspec.Struct]) -> None:
    for row in setting_rows(kind):
        default = "required" if row.required else "not set" if row.default is None else f"`{row.default}`"
        assert f"| `{row.name}` | {default} | {row.meaning} |" in README


def test_the_table_names_no_setting_that_the_code_does_not_read() -> None:
    known = {row.name for kind in KINDS for row in setting_rows(kind)}
    assert set(re.findall(r"^\| `([A-Z0-9_]+)` \|", README, re.MULTILINE)) == known


def test_settings_of_other_parts_are_not_called_misspelt() -> None:
    assert {row.name for row in setting_rows(AggregatorSettings)} == ELSEWHERE


def test_every_failure_reason_has_its_meaning_and_remedy() -> None:
    assert tuple(REMEDIES) == REASONS
    assert tuple(FLAG_REMEDIES) == FLAGS
    for reason, known in REMEDIES.items():
        assert f"| `{reason}` | {known.meaning} | {known.remedy} |\n" in README
    assert tuple(re.findall(r"^\| `([a-z_]+)` \|", README, re.MULTILINE)) == REASONS


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        word
        for command in re.findall(r"`make ([a-z -]+)`|^make ([a-z-]+)", README, re.MULTILINE)
        for word in " ".join(command).split()
    }
    assert named
    assert named <= targets


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [name for names in project["optional-dependencies"].values() for name in names]
    for requirement in [*project["dependencies"], *extras]:
        name = re.split(r"[^A-Za-z0-9-]", requirement)[0]
        assert re.search(rf"^\| .*\b{name}\b", ARCHITECTURE, re.MULTILINE), name
