"""`python -m ops.engines.cpu install | model | serve`."""

import os
import sys
from pathlib import Path

import click

from ops.engines.cpu.install import INSIDE, VERSIONS, InstallFailed, cache_folder, install
from ops.engines.cpu.models import FLAGS, ModelFailed, make_model

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
@click.argument("name", type=click.Choice(list(FLAGS)))
@version_option
def model(name: str, version: str) -> None:
    """Make a model in the cache.

    Example: python -m ops.engines.cpu model tiny-chain
    """
    cache = cache_folder(os.environ)
    make_model(cache, install(cache, version), name)


@main.command(context_settings={"ignore_unknown_options": True})
@version_option
@click.option("--model", "name", type=click.Choice(list(FLAGS)), default="smollm2-135m", show_default=True)
@click.option("--port", type=int, default=30000, show_default=True, help="On 127.0.0.1.")
@click.argument("more", nargs=-1)
def serve(version: str, name: str, port: int, more: tuple[str, ...]) -> None:
    """Start a server in the foreground; further arguments go to SGLang.

    Example: python -m ops.engines.cpu serve --model tiny-chain --port 30000 --reasoning-parser qwen3
    """
    cache = cache_folder(os.environ)
    python = install(cache, version)
    argv, environment = server_command(python, make_model(cache, python, name), name, port, more)
    os.execve(argv[0], argv, {**os.environ, **environment})  # noqa: S606  (no shell: the server takes this process' place)


def server_command(python: Path, folder: Path, name: str, port: int, more: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """Command line and environment of a server."""
    argv = [str(python), str(INSIDE / "serve.py"), "--model-path", str(folder), "--served-model-name", name]
    argv += ["--device", "cpu", "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--grammar-backend", "none"]
    argv += ["--enable-metrics", "--sleep-on-idle", *FLAGS[name], *more]
    environment = {
        "SGLANG_USE_CPU_ENGINE": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "SGLANG_CPU_OMP_THREADS_BIND": "0",  # one OpenMP thread: far steadier on two cores
    }
    return argv, environment


if __name__ == "__main__":
    try:
        main()
    except (InstallFailed, ModelFailed) as error:
        sys.exit(str(error))
