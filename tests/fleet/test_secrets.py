"""What must never stand in a log or a key: passwords, prompts, answers, ids."""

import json
import socket

import pytest

from ops.quickstart.processes import ChildProcess, wait_until
from tests.fleet.harness import FleetUnderTest

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]

PASSWORD = "hunter2-of-redis"
API_KEY = "sk-hunter2-of-the-engine"
PROMPT = "SECRETPROMPT"
ID = "../SECRETID"


def run_with_secrets(fleet: FleetUnderTest) -> tuple[str, ChildProcess]:
    """A run with a password, an API key, ids and prompts to hide, and every kind of failure; all that was logged."""
    fleet.client.config_set("requirepass", PASSWORD)
    fleet.settings = {
        "FLEET_BROKER": f"redis://:{PASSWORD}@127.0.0.1:{fleet.redis_port}/0",
        "ENGINE_API_KEY": API_KEY,
        "FLEET_MAX_TRIES": "2",
    }
    source = fleet.folder / "secrets.jsonl"
    rows = [{"id": f"{ID}{number}", "prompt": f"{PROMPT} number {number}"} for number in range(60)]
    source.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"id": f"{ID}x", "prompt": 7}]))
    fleet.engine()
    kinds = ("empty", "nan", "abort", "error_body", "not_json", "out_of_memory", "disconnect", "null_content")
    rules = [{"kind": kind, "match": f"number {number}"} for number, kind in enumerate(kinds)]
    fleet.faults(
        "gpu0",
        *rules,
        {"kind": "status", "code": 400, "match": "number 20", "body": f"the prompt {PROMPT} is too long"},
    )
    worker = fleet.worker()
    told = []
    for command in (
        ("enqueue", str(source), "--run", "r", "--max-tokens", "64", "--batch-size", "8"),
        ("status", "r"),
        ("runs",),
    ):
        done = fleet.producer(*command)
        assert done.code == 0, done.err
        told += [done.out if command[0] != "enqueue" else "", done.err if command[0] != "enqueue" else ""]
    secret_client = fleet.client_with(PASSWORD)
    wait_until(lambda: secret_client.hget("fleet:{r}:state", "status") == b"complete", 60, "run r complete")
    told += [fleet.producer("audit", "r").out, fleet.producer("failures", "r").err]
    for key in secret_client.scan_iter("*"):
        told.append(key.decode())
    worker.stop()
    told += [path.read_text(errors="replace") for path in fleet.folder.glob("worker-*.log")]
    told += [str(path.relative_to(fleet.folder)) for path in (fleet.folder / "store").rglob("*")]
    return "\n".join(told), worker


def test_no_secret_and_no_text_of_a_user_stands_in_a_log_or_a_key(fleet: FleetUnderTest) -> None:
    told, worker = run_with_secrets(fleet)
    assert worker.returncode() == 0
    assert "batch.completed" in told
    for secret in (PASSWORD, API_KEY, PROMPT, "SECRETID"):
        lines = [line for line in told.splitlines() if secret in line]
        assert not lines, lines[:3]


@pytest.mark.parametrize("arguments", [("status", "r"), ("runs",), ("resume", "r")])
def test_a_broker_that_is_not_there_is_named_without_its_password(fleet: FleetUnderTest, arguments: tuple[str, ...]) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        fleet.settings = {"FLEET_BROKER": f"redis://user:{PASSWORD}@127.0.0.1:{nobody.getsockname()[1]}/0"}
        done = fleet.producer(*arguments)
    assert done.code in {2, 3}
    assert PASSWORD not in done.out + done.err
