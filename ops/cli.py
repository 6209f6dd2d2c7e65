"""The `ops` command: which subcommands there are."""

import click

from workers.commandline import CONTEXT, LazyGroup, run

COMMANDS = {
    "quickstart": "ops.quickstart.command:quickstart",
    "redis": "ops.quickstart.redis_command:redis",
    "aggregator": "ops.aggregator.command:aggregator",
    "drill": "ops.drill.command:drill",
    "simulate-engine": "ops.simulator.command:simulate_engine",
}


@click.group(cls=LazyGroup, places=COMMANDS, context_settings=CONTEXT)
@click.version_option(package_name="promptfleet")
def ops() -> None:
    """Watch, tune and rehearse the fleet.

    Example: ops quickstart --simulated
    """


def main() -> None:
    """Entry point."""
    run(ops, "ops")
