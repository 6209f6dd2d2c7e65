"""What `pip install .` installs is whole: scripts for Redis, recordings, example prompts, the engine's inner files."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("workers", "producer", "ops")
NOT_INSTALLED = {"ops/docker/Dockerfile"}

pytestmark = pytest.mark.integration


def test_the_wheel_holds_every_file_of_the_packages(tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout, so there is no list to hold the wheel to")
    source = tmp_path / "source"
    for name in [*listed.stdout.split(), "pyproject.toml", "README.md", "LICENSE"]:
        if (ROOT / name).exists():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)]
    subprocess.run(build, check=True, timeout=50)
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = {name for name in listed.stdout.split() if (ROOT / name).exists()} - NOT_INSTALLED
    assert wanted - held == set()
