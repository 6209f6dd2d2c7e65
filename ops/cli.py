"""The `ops` command: which subcommands there are. Each is imported when it is named."""

import importlib
import sys

import click

from workers.contract.errors import FleetError

COMMANDS = {
    "quickstart": "ops.quickstart.command:quickstart",
    "drill": "ops.drill.command:drill",
    "simulate-engine": "ops.simulator.command:simulate_engine",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are told."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="promptfleet")
def ops() -> None:
    """Watch, tune and rehearse the fleet.

    Example: ops quickstart --simulated
    """


def main() -> None:
    """Run a command; every expected error is one sentence on stderr and its exit code."""
    try:
        ops(prog_name="ops")
    except FleetError as error:
        click.echo(str(error), err=True)
        sys.exit(error.exit_code)
