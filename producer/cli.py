"""The `producer` command: which subcommands there are."""

import click

from workers.commandline import CONTEXT, LazyGroup, run

COMMANDS = {
    "enqueue": "producer.enqueue_command:enqueue",
    "status": "producer.status:status",
    "runs": "producer.runs:runs",
    "failures": "producer.failures.command:failures",
    "audit": "producer.audit:audit",
    "collect": "producer.collect.command:collect",
    "resume": "producer.resume:resume",
    "requeue": "producer.requeue:requeue",
    "pause": "producer.hold:pause",
    "cancel": "producer.hold:cancel",
}
"""Loaded when asked for: `producer --help` imports none of them."""


@click.group(cls=LazyGroup, places=COMMANDS, context_settings=CONTEXT)
@click.version_option(package_name="promptfleet")
def producer() -> None:
    """Hand runs of prompts to the fleet, and take their completions.

    FLEET_BROKER and FLEET_STORE say where the fleet is.

    Example: producer enqueue prompts.jsonl --run my-run --max-tokens 4096 --temperature 0.7
    """


def main() -> None:
    """Entry point."""
    run(producer, "producer")
