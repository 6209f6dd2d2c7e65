"""A store and an empty Redis of each test, and the producer's commands in this process."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
import pytest
import redis
import structlog
from click.testing import CliRunner

from workers.contract.errors import FleetError
from workers.contract.settings import FleetSettings
from workers.object_store import ObjectStore
from workers.store import open_store


@dataclass(frozen=True)
class Ran:
    """How a command ended: exit code, what it printed, and the sentence of its error."""

    code: int
    out: str
    err: str
    out_bytes: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture
def fleet_settings(redis_url: str, store_url: str, monkeypatch: pytest.MonkeyPatch) -> FleetSettings:
    monkeypatch.setenv("FLEET_BROKER", redis_url)
    monkeypatch.setenv("FLEET_STORE", store_url)
    return FleetSettings(broker=redis_url, store=store_url)


@pytest.fixture
def store(fleet_settings: FleetSettings) -> ObjectStore:
    return open_store(fleet_settings)


@pytest.fixture
def client(redis_url: str) -> "redis.Redis":
    return redis.Redis.from_url(redis_url)


@pytest.fixture
def run_command(fleet_settings: FleetSettings) -> Run:
    """Run a command as `producer.cli` would: a FleetError becomes its sentence and its exit code."""

    def run(command: click.Command, *arguments: str) -> Ran:
        result = CliRunner().invoke(command, list(arguments))
        structlog.reset_defaults()
        if isinstance(result.exception, FleetError):
            return Ran(result.exception.exit_code, result.stdout, f"{result.stderr}{result.exception}", result.stdout_bytes)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr, result.stdout_bytes)

    return run
