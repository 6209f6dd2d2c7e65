"""The installation of the CPU engine: its pins, its stamp, its command lines. What it installs is an empty list."""

import re
from pathlib import Path

import pytest

from ops.engines.cpu import install
from ops.engines.cpu.install import TORCH, VERSIONS, InstallFailed, is_installed, pins_digest, requirements_of
from ops.engines.cpu.models import MODELS, ModelFailed, make_model
from ops.engines.cpu.serving import server_command

PIN = re.compile(r"^([a-z0-9-]+)==\S+ --hash=sha256:[0-9a-f]{64}$")


@pytest.fixture
def nothing_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder, and lists of pins without a pin."""
    for name in ("requirements-0.5.11.txt", "torch.txt"):
        (tmp_path / name).write_text("# nothing\n")
    monkeypatch.setattr(install, "HERE", tmp_path)
    monkeypatch.setattr(install, "TORCH", tmp_path / "torch.txt")
    return tmp_path / "cache"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_package_is_pinned_once_with_its_hash_and_no_address(version: str) -> None:
    text = requirements_of(version).read_text()
    pins = [line for line in text.splitlines() if not line.startswith("#")]
    names = [found[1] for found in map(PIN.match, pins) if found]
    assert len(names) == len(pins)
    assert names == sorted(set(names))
    assert f"sglang=={version} " in text
    assert "://" not in text + TORCH.read_text()


def test_comments_and_hashes_do_not_change_what_is_installed_but_versions_do(tmp_path: Path) -> None:
    one, other, newer = (tmp_path / name for name in ("one", "other", "newer"))
    one.write_text("# a\nx==1 --hash=sha256:aa\n")
    other.write_text("x==1 --hash=sha256:bb\n")
    newer.write_text("x==2 --hash=sha256:aa\n")
    assert pins_digest(one) == pins_digest(other) != pins_digest(newer)


def test_a_version_without_pins_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(InstallFailed, match=r"SGLang 0\.4\.0 .* was not installed: there are pins for 0\.5\.11, 0\.5\.23 only"):
        requirements_of("0.4.0")


def test_a_half_finished_installation_is_made_anew_and_a_whole_one_left_alone(nothing_to_install: Path) -> None:
    cache = nothing_to_install
    half = cache / "sglang-0.5.11"
    half.mkdir(parents=True)
    (half / "left-over").touch()
    assert not is_installed(cache, "0.5.11")
    python = install.install(cache, "0.5.11")
    assert python.exists()
    assert not (half / "left-over").exists()
    assert is_installed(cache, "0.5.11")
    (half / "kept").touch()
    install.install(cache, "0.5.11")
    assert (half / "kept").exists()


def test_an_installation_that_fails_says_at_what_and_is_not_whole(nothing_to_install: Path) -> None:
    cache = nothing_to_install
    pins = cache.parent / "requirements-0.5.11.txt"
    pins.write_text("no such requirement\n")
    with pytest.raises(InstallFailed, match=rf"pip could not install {re.escape(str(pins))} \(exit code 1\)"):
        install.install(cache, "0.5.11")
    assert not is_installed(cache, "0.5.11")


def test_a_machine_that_the_pins_are_not_for_is_told_so(nothing_to_install: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "PINS_ARE_FOR", ("CPython 3.11", "Plan9", "x86_64"))
    with pytest.raises(InstallFailed, match=r"the pins are for CPython 3\.11, Plan9, x86_64; this is CPython 3\.11, "):
        install.install(nothing_to_install, "0.5.11")


def test_an_unknown_model_is_refused_and_the_known_ones_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFailed, match="model tiny-gpt: unknown; there are tiny-qwen3, tiny-chain, "):
        make_model(tmp_path, tmp_path / "python", "tiny-gpt")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("model", MODELS)
def test_every_server_is_on_the_loopback_with_its_own_environment_and_metrics(tmp_path: Path, version: str, model: str) -> None:
    argv, environment = server_command(tmp_path, version, model, 22_001, ("--reasoning-parser", "qwen3"))
    assert argv[0] == str(tmp_path / f"sglang-{version}" / "bin" / "python")
    assert argv[argv.index("--host") + 1] == "127.0.0.1"
    assert argv[argv.index("--port") + 1] == "22001"
    assert argv[-2:] == ["--reasoning-parser", "qwen3"]
    assert {"--enable-metrics", "--sleep-on-idle"} <= set(argv)
    assert environment["SGLANG_USE_CPU_ENGINE"] == environment["HF_HUB_OFFLINE"] == "1"
    assert ("--mamba-radix-cache-strategy" in argv) == ((version, model) == ("0.5.23", "tiny-hybrid"))
