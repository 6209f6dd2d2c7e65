"""Every command has a help text with an example, and the README names it."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ops.cli import COMMANDS as OPS
from ops.cli import ops
from producer.cli import COMMANDS as PRODUCER
from producer.cli import producer

README = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
GROUPS: dict[str, tuple[click.Group, dict[str, str]]] = {"producer": (producer, PRODUCER), "ops": (ops, OPS)}
ALL = [(group, name) for group, (_, commands) in GROUPS.items() for name in commands]


@pytest.mark.parametrize(("group", "name"), ALL)
def test_help_has_an_example_of_the_command_itself(group: str, name: str) -> None:
    done = CliRunner().invoke(GROUPS[group][0], [name, "--help"])
    assert done.exit_code == 0
    assert f"Example: {group} {name}" in " ".join(done.output.split())


@pytest.mark.parametrize("group", GROUPS)
def test_the_groups_help_lists_every_command(group: str) -> None:
    done = CliRunner().invoke(GROUPS[group][0], ["--help"])
    assert done.exit_code == 0
    assert "Example:" in done.output
    for name in GROUPS[group][1]:
        assert name in done.output


@pytest.mark.parametrize(("group", "name"), ALL)
def test_the_readme_names_the_command(group: str, name: str) -> None:
    assert f"`{group} {name}" in README


@pytest.mark.parametrize("arguments", [["enqueue"], ["status"], ["enqueue", "x", "--run", "../up"], ["nonsense"]])
def test_a_wrong_call_is_exit_2_with_a_sentence(arguments: list[str]) -> None:
    done = CliRunner().invoke(producer, arguments)
    assert done.exit_code == 2
    assert "Error" in done.output
