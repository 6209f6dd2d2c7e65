"""Install SGLang for the CPU into the cache, once per list of pins."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSIONS = ("0.5.11", "0.5.23")
HERE = Path(__file__).parent
INSIDE = HERE / "inside"
_GPU_ONLY = ("triton/backends/nvidia/lib", "triton/backends/nvidia/bin", "triton/backends/amd/lib")
"""What Triton needs only to compile for a GPU: half a gigabyte."""


class InstallFailed(Exception):
    """pip ended with an error; its own words were printed."""

    def __init__(self, version: str, what: str) -> None:
        super().__init__(version, what)
        self.version, self.what = version, what

    def __str__(self) -> str:
        return f"SGLang {self.version} for the CPU was not installed: {self.what}"


def cache_folder(environment: "os._Environ[str] | dict[str, str]") -> Path:
    """`PROMPTFLEET_CACHE`, else `.cache` beside the code."""
    named = environment.get("PROMPTFLEET_CACHE")
    return Path(named).absolute() if named else HERE.parents[2] / ".cache"


def venv_folder(cache: Path, version: str) -> Path:
    """Where a version is installed."""
    return cache / f"sglang-{version}"


def requirements_of(version: str) -> Path:
    """The pins of a version.

    Raises:
        InstallFailed: No such version.
    """
    path = HERE / f"requirements-{version}.txt"
    if not path.exists():
        raise InstallFailed(version, f"there are pins for {', '.join(VERSIONS)} only")
    return path


def is_installed(cache: Path, version: str) -> bool:
    """Whether the installation is whole and of today's pins."""
    stamp = venv_folder(cache, version) / "installed"
    return stamp.exists() and stamp.read_text() == _digest(requirements_of(version))


def install(cache: Path, version: str) -> Path:
    """Install a version if it is not there; a half-finished installation is made anew.

    Returns:
        Its Python.

    Raises:
        InstallFailed: See there.
    """
    pins, folder = requirements_of(version), venv_folder(cache, version)
    python = folder / "bin" / "python"
    if is_installed(cache, version):
        return python
    if sys.version_info[:2] != (3, 11):
        raise InstallFailed(version, f"the pins are for Python 3.11, this is {sys.version.split()[0]}")
    print(f"installing SGLang {version} for the CPU into {folder} (2.2 GB, two minutes) …", file=sys.stderr, flush=True)  # noqa: T201
    shutil.rmtree(folder, ignore_errors=True)
    _run(version, [sys.executable, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps", "-r", str(pins)]
    _run(version, pip)
    packages = folder / "lib" / "python3.11" / "site-packages"
    for name in _GPU_ONLY:
        shutil.rmtree(packages / name, ignore_errors=True)
    (folder / "installed").write_text(_digest(pins))
    return python


def _digest(pins: Path) -> str:
    return hashlib.sha256(pins.read_bytes()).hexdigest()


def _run(version: str, argv: list[str]) -> None:
    done = subprocess.run(argv, check=False)
    if done.returncode:
        raise InstallFailed(version, f"`{' '.join(argv[:5])} …` ended with {done.returncode}")
