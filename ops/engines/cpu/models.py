"""Small models for the CPU engine: made into the cache when first asked for."""

import shutil
import subprocess
from pathlib import Path

from ops.engines.cpu.install import INSIDE, only_one

MODELS = ("tiny-qwen3", "tiny-chain", "tiny-hybrid", "smollm2-135m")


class ModelFailed(Exception):
    """The model could not be made."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(name, what)
        self.name, self.what = name, what

    def __str__(self) -> str:
        return f"model {self.name}: {self.what}"


def model_folder(cache: Path, name: str) -> Path:
    """Where a model lies."""
    return cache / "models" / name


def make_model(cache: Path, python: Path, name: str) -> Path:
    """Make a model if it is not there.

    Args:
        cache: Of the installation.
        python: Of an environment with SGLang.
        name: One of `MODELS`.

    Returns:
        Its folder.

    Raises:
        ModelFailed: An unknown name, or the making failed; its own words were printed.
    """
    if name not in MODELS:
        raise ModelFailed(name, f"unknown; there are {', '.join(MODELS)}")
    folder = model_folder(cache, name)
    with only_one(cache, name):
        if not (folder / "config.json").exists():
            half = folder.with_name(f".{name}.half")
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir(parents=True)
            done = subprocess.run([str(python), str(INSIDE / "make_model.py"), name, str(half)], check=False)
            if done.returncode:
                raise ModelFailed(name, f"making it ended with {done.returncode}")
            shutil.rmtree(folder, ignore_errors=True)
            half.rename(folder)
    return folder
