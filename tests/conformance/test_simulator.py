"""The simulated engine answers as the real one was recorded, version by version."""

from collections.abc import Callable

import pytest

from tests.conformance.checks import (
    ABORTED,
    CHECKS,
    MODELS,
    Check,
    InFlight,
    abort,
    aborted_as,
    aborted_while_running,
    check_conformance,
    get,
    judged,
    missing_metrics,
    wait_for_load,
)
from tests.conformance.recordings import VERSIONS, load, send, unlike

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("version", VERSIONS)]
Simulator = Callable[[str, str], str]
DENSE = MODELS[0]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_the_simulator_answers_as_recorded(simulator: Simulator, version: str, check: Check) -> None:
    recording = load(version, check.name)
    assert judged(check, recording, send(simulator(version, check.model), recording)) == []


@pytest.mark.parametrize("name", ABORTED)
def test_an_abort_ends_a_running_request_as_recorded(simulator: Simulator, version: str, name: str) -> None:
    assert aborted_while_running(simulator(version, DENSE), load(version, name)) == []


@pytest.mark.parametrize("name", ["aborted_queued_generate", "aborted_queued_chat"])
def test_an_abort_in_the_queue_is_told_as_recorded(simulator: Simulator, version: str, name: str) -> None:
    url, filler = simulator(version, DENSE), load(version, "aborted_generate")
    fillers = [InFlight(url, filler, {"rid": f"filler-{place}"}) for place in range(2)]
    wait_for_load(url, running=2)
    recording = load(version, name)
    waiting = InFlight(url, recording)
    wait_for_load(url, running=2, waiting=1)
    abort(url, rid=recording.asked["rid"])
    reply = waiting.reply()
    abort(url, abort_all=True)
    assert [one.reply().status for one in fillers] == [200, 200]
    wait_for_load(url, running=0)
    assert aborted_as(recording, reply) == []
    if name == "aborted_queued_generate":
        assert set(recording.json["meta_info"]) == set(reply.json["meta_info"])  # not even how long the prompt is
    else:
        assert reply.json["usage"] == recording.json["usage"]


def test_a_full_queue_is_refused_as_recorded(simulator: Simulator, version: str) -> None:
    url, filler = simulator(version, DENSE), load(version, "aborted_generate")
    fillers = [InFlight(url, filler, {"rid": f"filler-{place}"}) for place in range(3)]
    wait_for_load(url, running=2, waiting=1)
    recording = load(version, "queue_full")
    reply = send(url, recording)
    abort(url, abort_all=True)
    assert [one.reply().status for one in fillers] == [200, 200, 200]
    wait_for_load(url, running=0)
    assert recording.status == 503
    assert unlike(recording, reply) == []
    assert reply.json == recording.json


def test_every_metric_of_the_simulator_exists_with_these_labels_in_the_real_server(simulator: Simulator, version: str) -> None:
    told = get(f"{simulator(version, DENSE)}/metrics")
    assert told.count("# TYPE") > 15
    assert missing_metrics(told, load(version, "metrics").body.decode()) == []


@pytest.mark.parametrize("model", MODELS)
def test_the_simulator_conforms_as_a_whole(simulator: Simulator, version: str, model: str) -> None:
    assert check_conformance(simulator(version, model), version, model) == {}
