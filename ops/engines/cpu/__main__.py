"""`python -m ops.engines.cpu install | model | serve`."""

import os
import sys

import click

from ops.engines.cpu.install import VERSIONS, InstallFailed, cache_folder, install
from ops.engines.cpu.models import MODELS, ModelFailed, make_model
from ops.engines.cpu.serving import server_command

version_option = click.option("--version", type=click.Choice(VERSIONS), default=VERSIONS[0], show_default=True)


@click.group()
def main() -> None:
    """The real SGLang on this machine's CPU."""


@main.command("install")
@click.argument("version", type=click.Choice(VERSIONS))
def install_command(version: str) -> None:
    """Install a version into the cache.

    Example: python -m ops.engines.cpu install 0.5.23
    """
    install(cache_folder(os.environ), version)


@main.command()
@click.argument("name", type=click.Choice(MODELS))
@version_option
def model(name: str, version: str) -> None:
    """Make a model in the cache.

    Example: python -m ops.engines.cpu model tiny-chain
    """
    cache = cache_folder(os.environ)
    make_model(cache, install(cache, version), name)


@main.command(context_settings={"ignore_unknown_options": True})
@version_option
@click.option("--model", "name", type=click.Choice(MODELS), default="smollm2-135m", show_default=True)
@click.option("--port", type=int, default=30000, show_default=True, help="On 127.0.0.1.")
@click.argument("more", nargs=-1)
def serve(version: str, name: str, port: int, more: tuple[str, ...]) -> None:
    """Start a server in the foreground; further arguments go to SGLang.

    Example: python -m ops.engines.cpu serve --model tiny-chain --port 30000 --reasoning-parser qwen3
    """
    cache = cache_folder(os.environ)
    make_model(cache, install(cache, version), name)
    argv, environment = server_command(cache, version, name, port, more)
    os.execve(argv[0], argv, {**os.environ, **environment})  # noqa: S606  (no shell: the server takes this process' place)


if __name__ == "__main__":
    try:
        main()
    except (InstallFailed, ModelFailed) as error:
        sys.exit(str(error))
