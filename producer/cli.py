"""The `producer` command: which subcommands there are, and how an error becomes a sentence and an exit code."""

import importlib
import os
import sys

import botocore.exceptions
import click
import kombu.exceptions
import redis.exceptions

from workers.contract.errors import EXIT_BROKER, EXIT_STORE, FleetError

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


class LazyGroup(click.Group):
    """A group whose commands are imported when they are named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are used."""
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
def producer() -> None:
    """Hand runs of prompts to the fleet, and take their completions.

    FLEET_BROKER and FLEET_STORE say where the fleet is.

    Example: producer enqueue prompts.jsonl --run my-run --max-tokens 2048
    """


def main() -> None:
    """Run a command; every expected error is one sentence on stderr and its exit code."""
    try:
        producer(prog_name="producer")
    except FleetError as error:
        fail(str(error), error.exit_code)
    except (redis.exceptions.RedisError, kombu.exceptions.OperationalError) as error:
        fail(f"broker: {error}; is Redis up, and does FLEET_BROKER name it?", EXIT_BROKER)
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        fail(f"store: {error}; check FLEET_STORE and AWS_ENDPOINT_URL", EXIT_STORE)
    except BrokenPipeError:  # `producer collect … -o - | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def fail(sentence: str, code: int) -> None:
    """End the process with a sentence."""
    click.echo(sentence, err=True)
    sys.exit(code)
