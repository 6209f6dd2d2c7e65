"""The aggregator beside a working fleet: its figures are those of status and audit, whatever happens to it."""

import base64
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ops.drill.fleet import BIN, get_json, reachable
from ops.quickstart.processes import ChildProcess, free_port, wait_until
from tests.fleet.harness import FleetUnderTest
from workers.contract import layout

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(120)]
SLOW = ("--max-running", "4", "--mean-tokens", "60", "--sigma", "0.3", "--cap", "400", "--tokens-per-second", "40")


def aggregator(fleet: FleetUnderTest, *options: str, **settings: str) -> tuple[ChildProcess, str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    argv = [str(BIN / "ops"), "aggregator", "--port", str(port), *options]
    log = fleet.folder / f"aggregator-{port}.log"
    child = ChildProcess("aggregator", argv, log, ready=lambda: reachable(f"{url}/healthz"), env={**fleet.env, **settings})
    fleet.children.append(child.start())
    return child, url


def samples(url: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {(one.name, tuple(sorted(one.labels.items()))): one.value for family in families for one in family.samples}


def run_of(url: str, run: str = "r") -> dict[str, Any]:
    found: dict[str, Any] = get_json(f"{url}/api/runs/{run}")
    return found


def test_json_metrics_progress_status_and_audit_agree_to_the_row(fleet: FleetUnderTest, tmp_path: Path) -> None:
    fleet.engine("gpu0")
    fleet.engine("gpu1")
    fleet.faults("gpu1", {"kind": "status", "code": 400, "share": 0.1})
    fleet.worker("gpu0")
    fleet.worker("gpu1")
    child, url = aggregator(fleet, FLEET_USD_PER_HOUR="36")
    fleet.enqueue(fleet.prompts(800), "r", "--batch-size", "8")
    wait_until(lambda: reachable(f"{url}/api/runs/r"), 40, "the run seen")
    wait_until(lambda: run_of(url)["completed"] > 100, 40, "the run under way")
    seen = get_json(f"{url}/api/fleet")
    assert {worker["name"].partition("@")[0] for worker in seen["workers"]} == {"gpu0", "gpu1"}
    assert seen["fleet"]["slots"] == 40
    fleet.wait_complete()
    wait_until(lambda: run_of(url)["status"] == "complete", 40, "its end seen")
    found, status, audit = run_of(url), fleet.status(), fleet.assert_whole(prompts=800)
    for name in ("total", "completed", "failed", "pending", "total_input_tokens", "total_output_tokens", "failures", "shards"):
        assert found[name] == status[name], name
    assert (found["completed"], found["failed"]) == (audit["ok"], audit["failed"])
    assert found["failed"] > 0
    metrics = samples(url)
    assert metrics["fleet_run_completed_prompts", (("run", "r"),)] == audit["ok"]
    assert metrics["fleet_run_failures", (("reason", "rejected_by_engine"), ("run", "r"))] == audit["failed"]
    assert metrics["fleet_run_output_tokens_total", (("run", "r"),)] == status["total_output_tokens"]
    assert metrics["fleet_run_status", (("run", "r"), ("status", "complete"))] == 1
    published = json.loads((tmp_path / "store" / layout.progress("r")).read_text())
    assert published["status"] == "complete"
    assert (published["completed"], published["failed"]) == (audit["ok"], audit["failed"])
    twelve = "total completed failed rate_per_sec eta_hours total_input_tokens total_output_tokens avg_output_tokens"
    assert {*twelve.split(), "elapsed_hours", "s3_uploaded", "s3_bytes", "status"} <= published.keys()
    assert published["cost_usd"] == pytest.approx(36 * published["elapsed_hours"], abs=0.004)
    assert published["cost_at_end_usd"] == published["cost_usd"]
    assert child.stop() == 0


def test_predictions_are_judged_when_the_run_has_ended_even_by_an_aggregator_that_was_killed(fleet: FleetUnderTest) -> None:
    fleet.engine("gpu0", *SLOW)
    fleet.worker()
    child, url = aggregator(fleet)
    fleet.enqueue(fleet.prompts(100), "r", "--batch-size", "4")
    for share in (8, 30, 55):
        wait_until(lambda share=share: fleet.counted() > share, 60, f"{share} %")  # type: ignore[misc]
        child.kill()
        child, url = aggregator(fleet)
    fleet.wait_complete(timeout_s=60)
    wait_until(lambda: run_of(url)["status"] == "complete", 40, "its end seen")
    judged = run_of(url)["predictions"]
    assert judged
    assert {one["made_at_percent"] for one in judged} <= {5, 25, 50, 75}
    for one in judged:
        assert one["off"] == pytest.approx((one["predicted_s"] - one["actual_s"]) / one["actual_s"], abs=0.02)


def test_what_bounds_a_worker_is_named(fleet: FleetUnderTest) -> None:
    fleet.engine("gpu0", *SLOW)
    sick = fleet.engine("gpu1", *SLOW)
    fleet.worker("gpu0")
    fleet.worker("gpu1")
    _, url = aggregator(fleet)
    fleet.enqueue(fleet.prompts(300), "r", "--batch-size", "4")

    def bounded_by(name: str) -> str:
        workers = {one["name"].partition("@")[0]: one for one in get_json(f"{url}/api/fleet")["workers"]}
        return str(workers[name]["bottleneck"]) if name in workers else ""

    wait_until(lambda: bounded_by("gpu0") == "slot_bound", 40, "five slots for four places")
    sick.kill()
    wait_until(lambda: bounded_by("gpu1") == "engine_sick", 40, "the dead engine")
    alarms = get_json(f"{url}/api/fleet")["alarms"]
    assert ("engine_sick", "gpu1") in {(alarm["kind"], alarm["what"].partition("@")[0]) for alarm in alarms}
    assert samples(url)["fleet_alarms", (("kind", "engine_sick"),)] == 1


def test_nothing_stale_is_told_while_redis_is_away(fleet: FleetUnderTest) -> None:
    child, url = aggregator(fleet)
    wait_until(lambda: bool(samples(url)), 20, "figures")
    fleet.redis_process.kill()
    wait_until(lambda: not samples(url), 40, "no figures")
    assert not reachable(f"{url}/healthz")
    assert "does FLEET_BROKER" not in child.log_path.read_text()
    fleet.redis_process.start()
    wait_until(lambda: bool(samples(url)), 40, "figures again")


def test_off_the_loopback_it_wants_a_login_and_asks_for_it(fleet: FleetUnderTest) -> None:
    argv = [str(BIN / "ops"), "aggregator", "--host", "0.0.0.0", "--port", str(free_port())]
    refused = ChildProcess("aggregator", argv, fleet.folder / "refused.log", env=fleet.env)
    fleet.children.append(refused)
    refused.launch()
    wait_until(lambda: not refused.alive(), 20, "it ended")
    assert refused.returncode() == 2
    assert "set FLEET_PAGE_LOGIN=user:password, or say --without-login" in refused.log_path.read_text()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    asking = ChildProcess(
        "aggregator",
        [str(BIN / "ops"), "aggregator", "--port", str(port)],
        fleet.folder / "asking.log",
        env={**fleet.env, "FLEET_PAGE_LOGIN": "me:pass:word"},
    )
    fleet.children.append(asking)
    asking.launch()

    def code(login: str | None) -> int:
        header = {} if login is None else {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{url}/healthz", headers=header), timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    wait_until(lambda: code("me:pass:word") == 200, 20, "it serves who knows the login")
    assert [code(login) for login in (None, "me:pass", "you:pass:word", "é:x")] == [401] * 4
    assert "pass:word" not in asking.log_path.read_text()
