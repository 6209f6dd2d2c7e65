"""`producer enqueue` as a process, on a real Redis and both stores: safe to repeat, whatever happened in between."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from ops.quickstart.processes import free_port, wait_until
from workers.broker import QUEUE_LISTS, batches_named
from workers.contract import layout, names
from workers.contract.names import RunKeys
from workers.contract.schema import Manifest, decode_manifest, decode_prompts, shard_digest
from workers.contract.settings import FleetSettings
from workers.store import ObjectStore, open_store

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

PRODUCER = str(Path(sys.executable).with_name("producer"))
RUN = "r"
KEYS = RunKeys(RUN)


@dataclass
class Place:
    """A broker, a store, and the command."""

    redis_url: str
    store_url: str
    folder: Path

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "FLEET_BROKER": self.redis_url, "FLEET_STORE": self.store_url}

    @property
    def client(self) -> "redis.Redis":
        return redis.Redis.from_url(self.redis_url)

    @property
    def store(self) -> ObjectStore:
        return open_store(FleetSettings(broker=self.redis_url, store=self.store_url))

    def argv(self, source: str, *options: str, run: str = RUN) -> list[str]:
        return [PRODUCER, "enqueue", source, "--run", run, *options]

    def enqueue(self, source: object, *options: str, stdin: str | None = None) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.argv(str(source), *options), env=self.env, text=True, input=stdin, capture_output=True, timeout=60, check=False
        )

    def told(self, source: object, *options: str, stdin: str | None = None) -> dict[str, Any]:
        done = self.enqueue(source, "--json", *options, stdin=stdin)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def source(self, count: int, name: str = "source.jsonl") -> Path:
        path = self.folder / name
        path.write_text(
            "".join(json.dumps({"id": f"p{number}", "prompt": f"prompt {number}"}) + "\n" for number in range(count))
        )
        return path

    def manifest(self) -> Manifest:
        body = self.store.get(layout.manifest(RUN))
        assert body is not None
        return decode_manifest("m", body)

    def queued(self) -> list[str]:
        """Batches that have a message, in the order in which they are served."""
        named: list[str] = []
        for name in QUEUE_LISTS:
            raw: list[bytes] = self.client.lrange(name, 0, -1)[::-1]  # type: ignore[assignment]
            named += [batch for run, batch in batches_named(raw) if run == RUN]
        return named

    def assert_whole(self, prompts: int) -> None:
        """Every shard that the manifest promises is there, is right, and has a message."""
        manifest = self.manifest()
        assert manifest.prompts == prompts
        ids = []
        for number in range(manifest.batches):
            body = self.store.get(layout.input_shard(RUN, layout.batch_label(number)))
            assert body is not None
            assert shard_digest(body) == manifest.digest_of(number)
            ids += [prompt.id for prompt in decode_prompts("k", body)]
        assert len(ids) == len(set(ids)) == prompts
        assert len(list(self.store.list(layout.inputs_prefix(RUN)))) == manifest.batches
        assert set(self.queued()) == {layout.batch_label(number) for number in range(manifest.batches)}
        assert self.client.bitcount(KEYS.pushed) == manifest.batches
        assert self.client.hget(KEYS.state, "status") == b"running"


@pytest.fixture
def place(redis_url: str, store_url: str, tmp_path: Path) -> Place:
    return Place(redis_url, store_url, tmp_path)


@pytest.fixture
def local(redis_url: str, file_url: str, tmp_path: Path) -> Place:
    return Place(redis_url, file_url, tmp_path)


def test_a_run_is_enqueued_whole_and_again_changes_nothing(place: Place) -> None:
    source = place.source(150)
    with source.open("a") as file:
        file.write('not json\n{"id": "p3", "prompt": "again"}\n')
    first = place.told(source)
    assert first == {
        "run": RUN,
        "accepted": 150,
        "rejected": 2,
        "reasons": {"broken_json": 1, "duplicate_id": 1},
        "batches": 3,
        "prompts": 150,
        "pushed": 3,
        "already_done": 0,
        "status": "running",
    }
    place.assert_whole(150)
    assert place.store.get(layout.rejected(RUN)) is not None
    assert place.queued() == ["00000000", "00000001", "00000002"]
    assert place.told(source) == first | {"pushed": 0}
    assert len(place.queued()) == 3
    state = place.client.hgetall(KEYS.state)
    assert (state[b"total"], state[b"batches"], state[b"rejected"]) == (b"150", b"3", b"2")


def test_another_order_under_the_same_name_is_refused_by_the_field(local: Place) -> None:
    source = local.source(10)
    local.told(source)
    done = local.enqueue(source, "--temperature", "0.5")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1] == (
        "run r exists with another temperature: this command says 0.5, the run has nothing; "
        "use another --run, or the same temperature"
    )


def test_another_source_under_the_same_name_is_refused(local: Place) -> None:
    local.told(local.source(10))
    done = local.enqueue(local.source(11, "other.jsonl"))
    assert done.returncode == 2
    assert "run r exists with another source: this command says 11 rows accepted, sha256 " in done.stderr


def test_strict_enqueues_nothing_if_a_row_is_rejected(local: Place) -> None:
    source = local.source(10)
    source.write_text(source.read_text() + "{}\n")
    done = local.enqueue(source, "--strict")
    assert done.returncode == 2
    assert "1 of 11 rows rejected, the first: " in done.stderr
    assert "line 11: no_prompt (it has no fields); nothing was enqueued. Correct them, or leave out --strict" in done.stderr
    assert list(local.store.list("")) == []
    assert local.queued() == []


def test_a_dry_run_needs_no_fleet_and_shows_the_first_request(tmp_path: Path) -> None:
    source = tmp_path / "s"
    source.write_text('{"messages": [{"role": "user", "content": "hi"}], "temperature": 0.1}\nrubbish\n')
    bare = {name: value for name, value in os.environ.items() if not name.startswith("FLEET_")}
    argv = [PRODUCER, "enqueue", str(source), "--run", RUN, "--dry-run", "--json", "--thinking", "off", "--temperature", "0.9"]
    done = subprocess.run(argv, env=bare, text=True, capture_output=True, timeout=30, check=True)
    told = json.loads(done.stdout)
    assert (told["accepted"], told["rejected"], told["pushed"], told["recognised"]) == (1, 1, 0, {"messages": 1})
    assert told["first_request"] == {
        "path": "/v1/chat/completions",
        "body": {
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 2048,
            "temperature": 0.1,
            "chat_template_kwargs": {"enable_thinking": False},
        },
    }


def test_standard_input_several_sources_limit_and_samples(local: Place) -> None:
    told = local.told("-", "--limit", "5", "--samples", "3", "--batch-size", "4", stdin=local.source(9).read_text())
    assert (told["accepted"], told["prompts"], told["batches"]) == (5, 15, 4)
    body = local.store.get(layout.input_shard(RUN, "00000000"))
    assert body is not None
    assert [(prompt.id, prompt.sample) for prompt in decode_prompts("k", body)] == [("p0", 0), ("p0", 1), ("p0", 2), ("p1", 0)]


def test_a_run_of_higher_priority_is_served_first(local: Place) -> None:
    local.told(local.source(3))
    argv = local.argv(str(local.source(3)), "--priority", "9", run="urgent")
    subprocess.run(argv, env=local.env, capture_output=True, timeout=30, check=True)
    order = [run for name in QUEUE_LISTS for run, _ in batches_named(local.client.lrange(name, 0, -1))]  # type: ignore[arg-type]
    assert order == ["urgent", RUN]


def test_backpressure_holds_the_queue_below_its_mark(local: Place) -> None:
    process = subprocess.Popen(local.argv(str(local.source(60)), "--batch-size", "1", "--max-queued", "10"), env=local.env)
    most, taken = 0, 0
    ends = time.monotonic() + 40
    while process.poll() is None and time.monotonic() < ends:
        waiting = len(local.queued())
        most = max(most, waiting)
        if waiting and local.client.rpop(QUEUE_LISTS[names.broker_priority(4)]):
            taken += 1
        time.sleep(0.01)
    assert process.wait(5) == 0
    assert most <= 10
    assert taken + len(local.queued()) == 60


def kill_when(place: Place, source: Path, condition: Callable[[], bool], *options: str) -> None:
    process = subprocess.Popen(place.argv(str(source), *options), env=place.env, stderr=subprocess.DEVNULL)
    wait_until(lambda: condition() or process.poll() is not None, 30, "the moment to kill")
    process.send_signal(signal.SIGKILL)
    process.wait(5)
    place.client.delete(KEYS.enqueue)  # as after the half minute that a dead producer's lock lasts


def test_killed_while_it_uploads_the_same_command_completes(place: Place) -> None:
    source = place.source(1500)
    options = ["--batch-size", "10"]
    kill_when(place, source, lambda: place.store.head(layout.input_shard(RUN, "00000010")) is not None, *options)
    if place.store.get(layout.manifest(RUN)) is None:  # else it was faster than the kill
        assert place.queued() == []
        assert place.told(source, *options)["pushed"] == 150
    place.told(source, *options)
    place.assert_whole(1500)


def test_killed_while_it_pushes_the_same_command_completes(local: Place) -> None:
    source = local.source(3000)
    kill_when(local, source, lambda: len(local.queued()) > 300, "--batch-size", "1")
    told = local.told(source, "--batch-size", "1")
    assert 0 < told["pushed"] <= 3000
    local.assert_whole(3000)


def test_shards_of_an_interrupted_other_order_are_replaced_and_removed(local: Place) -> None:
    kill_when(
        local,
        local.source(3000),
        lambda: local.store.head(layout.input_shard(RUN, "00000050")) is not None,
        "--batch-size",
        "4",
    )
    if local.store.get(layout.manifest(RUN)) is not None:
        pytest.skip("it was done before it could be killed")
    local.told(local.source(30, "other.jsonl"), "--batch-size", "8")
    local.assert_whole(30)


def test_after_flushall_the_same_command_rebuilds_and_pushes_everything(local: Place) -> None:
    source = local.source(100)
    local.told(source, "--batch-size", "10")
    local.client.flushall()
    assert local.told(source, "--batch-size", "10")["pushed"] == 10
    local.assert_whole(100)


def test_two_at_once_push_each_batch_once(local: Place) -> None:
    source = local.source(2000)
    answers: list[dict[str, Any]] = []
    threads = [threading.Thread(target=lambda: answers.append(local.told(source, "--batch-size", "5"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer["pushed"] for answer in answers) == [0, 400]
    assert len(local.queued()) == 400
    local.assert_whole(2000)


def test_no_redis_is_exit_3_and_no_store_exit_4(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    source = local.source(3)
    port = free_port()
    down = Place(f"redis://user:secret@127.0.0.1:{port}/0", local.store_url, local.folder)
    done = down.enqueue(source)
    assert done.returncode == 3
    assert f"broker redis://***@127.0.0.1:{port}/0: " in done.stderr
    assert "is Redis up, and does FLEET_BROKER name it?" in done.stderr
    assert "secret" not in done.stderr
    (local.folder / "file").write_text("x")
    broken = Place(local.redis_url, f"file://{local.folder}/file/store", local.folder)
    done = broken.enqueue(source)
    assert done.returncode == 4
    assert "check FLEET_STORE and AWS_ENDPOINT_URL" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--top-p", "1.5"], "top_p is 1.5, expected above 0 and at most 1"),
        (["--max-tokens", "0"], "max_tokens is 0, expected at least 1"),
        (["--samples", "0"], "0 is not in the range"),
        (["--priority", "10"], "10 is not in the range"),
        (["--run", "../up"], "expected up to 64 letters, digits, dots, dashes and underscores"),
    ],
)
def test_a_wrong_option_is_exit_2_and_named(local: Place, options: list[str], words: str) -> None:
    done = local.enqueue(local.source(1), *options)
    assert done.returncode == 2
    assert words in done.stderr


def test_sampling_from_a_file_is_overridden_by_options(local: Place) -> None:
    path = local.folder / "sampling.toml"
    path.write_text('max_tokens = 9\ntemperature = 0.2\nstop = ["a"]\n')
    local.told(local.source(3), "--sampling", str(path), "--temperature", "0.7", "--thinking", "on")
    sampling = local.manifest().sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.stop, sampling.thinking) == (9, 0.7, ("a",), True)
    path.write_text("heat = 1")
    done = local.enqueue(local.source(3), "--sampling", str(path))
    assert done.returncode == 2
    assert "unknown field heat" in done.stderr
