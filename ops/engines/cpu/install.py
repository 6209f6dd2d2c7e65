"""Install SGLang for the CPU into the cache, once per list of pins."""

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

VERSIONS = ("0.5.11", "0.5.23")
HERE = Path(__file__).parent
INSIDE = HERE / "inside"
TORCH = HERE / "torch.txt"
PINS_ARE_FOR = ("CPython 3.11", "Linux", "x86_64")
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
    return stamp.exists() and stamp.read_text() == pins_digest(requirements_of(version), TORCH)


def pins_digest(*files: Path) -> str:
    """Digest of names and versions in requirements files; their comments and hashes change nothing that is installed."""
    lines = [line.split(" ")[0] for file in files for line in file.read_text().splitlines() if not line.startswith("#")]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def install(cache: Path, version: str) -> Path:
    """Install a version if it is not there; a half-finished installation is made anew.

    Returns:
        Its Python.

    Raises:
        InstallFailed: See there.
    """
    pins, folder = requirements_of(version), venv_folder(cache, version)
    python = folder / "bin" / "python"
    with only_one(cache, f"sglang-{version}"):
        if is_installed(cache, version):
            return python
        _check_platform(version)
        begun = time.monotonic()
        _tell(f"installing SGLang {version} for the CPU into {folder} (2.2 GB, two minutes) …")
        shutil.rmtree(folder, ignore_errors=True)
        _run(version, [sys.executable, "-m", "venv", str(folder)], "no virtual environment could be made")
        pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps"]
        _run(version, [*pip, "-r", str(TORCH)], f"pip found no CPU build of torch; {TORCH} says where it looks")
        _run(version, [*pip, "--require-hashes", "-r", str(pins)], f"pip could not install {pins}")
        for name in _GPU_ONLY:
            shutil.rmtree(folder / "lib" / "python3.11" / "site-packages" / name, ignore_errors=True)
        (folder / "installed").write_text(pins_digest(pins, TORCH))
        _tell(f"installed SGLang {version} in {time.monotonic() - begun:.0f} s")
    return python


@contextlib.contextmanager
def only_one(cache: Path, what: str) -> Iterator[None]:
    """Of two commands at once that make the same thing, the second waits, and finds it done."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{what}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _check_platform(version: str) -> None:
    found = (
        f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}",
        platform.system(),
        platform.machine(),
    )
    if found != PINS_ARE_FOR:
        raise InstallFailed(version, f"the pins are for {', '.join(PINS_ARE_FOR)}; this is {', '.join(found)}")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201  (progress of a command)


def _run(version: str, argv: list[str], otherwise: str) -> None:
    done = subprocess.run(argv, check=False)
    if done.returncode:
        raise InstallFailed(version, f"{otherwise} (exit code {done.returncode})")
