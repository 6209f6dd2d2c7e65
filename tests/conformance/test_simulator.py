"""The simulated engine answers as the real one was recorded, version by version."""

import json
import re
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.quickstart.processes import ChildProcess, free_port
from tests.conformance.recordings import REPLAYED, VERSIONS, Recording, differences, load, nonconformity, send
from tests.fleet.harness import reachable

pytestmark = pytest.mark.integration

OPS = str(Path(sys.executable).with_name("ops"))
CASES = [(version, name) for version in VERSIONS for name in REPLAYED]


@pytest.fixture(scope="module")
def simulators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A simulator of each version with the settings of the recorded server."""
    urls, children = {}, []
    for version in VERSIONS:
        port = free_port()
        argv = [OPS, "simulate-engine", "--port", str(port), "--version", version, "--model", "tiny-qwen3"]
        argv += ["--context-length", "2048", "--reasoning-parser", "qwen3", "--max-running", "2", "--max-queued", "1"]
        argv += ["--tokens-per-second", "400", "--mean-tokens", "1500", "--sigma", "0.1", "--cap", "1900"]
        urls[version] = f"http://127.0.0.1:{port}"
        log = tmp_path_factory.mktemp("simulator") / "log"
        ready = f"{urls[version]}/v1/models"
        child = ChildProcess(f"simulator {version}", argv, log, ready=lambda ready=ready: reachable(ready))  # type: ignore[misc]
        children.append(child.start())
    yield urls
    for child in children:
        child.kill()


@pytest.mark.parametrize(("version", "name"), CASES)
def test_the_simulator_answers_as_recorded(simulators: dict[str, str], version: str, name: str) -> None:
    assert nonconformity(simulators[version], load(version, name)) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_full_queue_is_refused_as_recorded(simulators: dict[str, str], version: str) -> None:
    body = json.dumps({"text": "fill", "sampling_params": {"max_new_tokens": 2000}}).encode()
    url = simulators[version]

    def fill() -> None:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/generate", body), timeout=30) as response:
            response.read()

    threads = [threading.Thread(target=fill) for _ in range(3)]  # two run, one waits
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    recorded = load(version, "queue_full")
    status, found = send(url, recorded)
    abort = urllib.request.Request(f"{url}/abort_request", b'{"abort_all": true}')
    urllib.request.urlopen(abort, timeout=5).close()
    for thread in threads:
        thread.join()
    assert status == recorded.status == 503
    assert json.loads(found) == recorded.json


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["aborted_generate", "aborted_chat"])
def test_an_abort_ends_a_request_as_recorded(simulators: dict[str, str], version: str, name: str) -> None:
    recorded = load(version, name)
    answers: list[tuple[int, bytes]] = []
    thread = threading.Thread(target=lambda: answers.append(send(simulators[version], recorded)))
    thread.start()
    time.sleep(0.3)
    rid = json.loads(recorded.request_body or b"{}")["rid"]
    abort = urllib.request.Request(f"{simulators[version]}/abort_request", json.dumps({"rid": rid[:-1]}).encode())
    urllib.request.urlopen(abort, timeout=5).close()  # by prefix, as the real one does
    thread.join()
    status, body = answers[0]
    assert status == 200
    told = differences(recorded.json, json.loads(body))
    assert [line for line in told if ".message.content" not in line] == []  # null when the abort comes while thinking
    if name == "aborted_generate":
        assert json.loads(body)["meta_info"]["finish_reason"] == recorded.json["meta_info"]["finish_reason"]
    else:
        assert json.loads(body)["choices"][0]["finish_reason"] == "abort"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_metric_of_the_simulator_exists_with_these_labels_in_the_real_server(
    simulators: dict[str, str], version: str
) -> None:
    with urllib.request.urlopen(f"{simulators[version]}/metrics", timeout=5) as response:
        found = response.read().decode()
    recorded = load(version, "metrics").body.decode()
    for family, kind in re.findall(r"^# TYPE (\S+) (\S+)$", found, re.MULTILINE):
        assert f"# TYPE {family} {kind}" in recorded, family
    for family, labels in re.findall(r"^(sglang:\S+?)\{(.*)\} ", found, re.MULTILINE):
        names = re.findall(r'(\w+)="', labels)
        assert re.search(rf"^{family}\{{" + ".*".join(names), recorded, re.MULTILINE), (family, names)


def test_the_comparison_sees_a_missing_key_another_type_and_another_status(simulators: dict[str, str]) -> None:
    recorded = load("0.5.11", "generate_text")
    broken = recorded.json
    del broken["meta_info"]["prompt_tokens"]
    broken["text"] = 5
    broken["meta_info"]["finish_reason"] = None
    assert differences(recorded.json, broken) == [
        "$.text: number, recorded string",
        "$.meta_info.prompt_tokens: missing",
        "$.meta_info.finish_reason: null, recorded object",
    ]
    wrong = Recording("x", "0.5.11", "GET", "/v1/models", b"", 404, b"{}")
    assert nonconformity(simulators["0.5.11"], wrong)[0].startswith("status 200, recorded 404")
    assert nonconformity(simulators["0.5.11"], load("0.5.23", "err_unknown_sampling_param_generate"))
