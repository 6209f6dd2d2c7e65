"""What `producer` and `ops` share: commands that are imported when they are named, and errors as one sentence and an exit code.

The libraries whose errors are translated are looked at only when an error has come, so that `--help` imports none of them.
"""

import importlib
import os
import sys
from collections.abc import Mapping

import click

from workers.contract.errors import EXIT_BROKER, EXIT_STORE, FleetError

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


class LazyGroup(click.Group):
    """A group of commands by their places, `module:name`, each imported when it is named."""

    def __init__(self, *args: object, places: Mapping[str, str], **attributes: object) -> None:
        super().__init__(*args, **attributes)  # type: ignore[arg-type]
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are used."""
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in self._places:
            return None
        module, _, name = self._places[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


def run(group: click.Group, name: str) -> None:
    """Run a command; every expected error is one sentence on stderr and its exit code."""
    try:
        group(prog_name=name)
    except FleetError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:  # `producer collect … -o - | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if (told := _translated(error)) is None:
            raise
        _fail(*told)


def _translated(error: Exception) -> tuple[str, int] | None:
    """Errors of Redis and S3 that no command told in its own words."""
    import botocore.exceptions  # noqa: PLC0415
    import kombu.exceptions  # noqa: PLC0415
    import redis.exceptions  # noqa: PLC0415

    if isinstance(error, redis.exceptions.RedisError | kombu.exceptions.OperationalError):
        return f"broker: {str(error).rstrip('.')}; is Redis up, and does FLEET_BROKER name it?", EXIT_BROKER
    if isinstance(error, botocore.exceptions.BotoCoreError | botocore.exceptions.ClientError):
        return f"store: {error}; check FLEET_STORE and AWS_ENDPOINT_URL", EXIT_STORE
    return None


def _fail(sentence: str, code: int) -> None:
    click.echo(sentence, err=True)
    sys.exit(code)
