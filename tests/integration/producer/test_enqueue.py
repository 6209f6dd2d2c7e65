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
from functools import cached_property
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

    @cached_property
    def client(self) -> "redis.Redis":
        return redis.Redis.from_url(self.redis_url)

    @cached_property
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

    def waiting(self) -> int:
        return sum(int(self.client.llen(name)) for name in QUEUE_LISTS)

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
        "ignored_fields": {},
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


@pytest.mark.parametrize(
    ("option", "value", "field", "has"),
    [
        ("--temperature", "0.5", "temperature", "nothing"),
        ("--max-tokens", "7", "max_tokens", "2048"),
        ("--model", "m", "model", "nothing"),
        ("--batch-size", "7", "batch_size", "64"),
        ("--samples", "2", "samples", "1"),
        ("--limit", "5", "limit", "nothing"),
        ("--priority", "9", "priority", "4"),
    ],
)
def test_another_order_under_the_same_name_is_refused_by_the_field(
    local: Place, option: str, value: str, field: str, has: str
) -> None:
    source = local.source(10)
    local.told(source)
    queued = local.queued()
    done = local.enqueue(source, option, value)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1] == (
        f"run r exists with another {field}: this command says {value}, the run has {has}; "
        f"use another --run, or the same {field}"
    )
    assert local.queued() == queued


def test_another_source_under_the_same_name_is_refused(local: Place) -> None:
    local.told(local.source(10))
    done = local.enqueue(local.source(11, "other.jsonl"))
    assert done.returncode == 2
    assert "run r exists with another source: this command says 11 rows accepted, sha256 " in done.stderr


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            "{}\n",
            "no row could be accepted (1 rejected, the first: {source} line 1: no_prompt (it has no fields)); "
            "expected JSON lines, an object in each",
        ),
        ("\n", "empty, or blank lines only"),
    ],
)
def test_a_source_without_any_row_leaves_nothing_behind(local: Place, content: str, sentence: str) -> None:
    source = local.folder / "source"
    source.write_text(content)
    done = local.enqueue(source)
    assert done.returncode == 2
    assert done.stderr == f"{source}: {sentence.format(source=source)}; nothing was enqueued\n"
    assert local.client.keys() == []
    assert list(local.store.list("")) == []
    local.told(local.source(10))
    local.assert_whole(10)


def test_a_source_whose_name_is_not_unicode_is_enqueued(local: Place) -> None:
    plain = local.source(3)
    plain.write_text(plain.read_text() + "rubbish\n")
    source = plain.rename(os.fsdecode(os.fsencode(local.folder) + b"/caf\xe9.jsonl"))
    assert local.told(source)["rejected"] == 1
    assert local.manifest().sources == (f"{local.folder}/caf\\xe9.jsonl",)
    local.assert_whole(3)


def test_standard_input_cannot_be_read_twice(local: Place) -> None:
    done = local.enqueue("-", "--strict", stdin="{}")
    assert (done.returncode, done.stderr) == (
        2,
        "-: --strict reads the source twice, which standard input does not allow; give a file; nothing was enqueued\n",
    )


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


SHARDS = 40


@pytest.mark.parametrize("shards", [1, SHARDS // 2, SHARDS - 1])
def test_killed_while_it_uploads_the_same_command_completes(place: Place, shards: int) -> None:
    source = place.source(10 * SHARDS)
    last = layout.input_shard(RUN, layout.batch_label(shards - 1))
    kill_when(place, source, lambda: place.store.head(last) is not None, "--batch-size", "10")
    if place.store.get(layout.manifest(RUN)) is None:  # else it was faster than the kill
        assert place.queued() == []
    place.told(source, "--batch-size", "10")
    place.assert_whole(10 * SHARDS)


def test_what_is_left_when_killed_between_manifest_and_push_is_completed(place: Place) -> None:
    source = place.source(100)
    place.told(source, "--batch-size", "10")
    place.client.delete(KEYS.pushed, *QUEUE_LISTS)
    place.client.hset(KEYS.state, "status", "enqueueing")
    assert place.told(source, "--batch-size", "10")["pushed"] == 10
    place.assert_whole(100)


def test_what_is_left_when_killed_between_push_and_its_note_is_pushed_again_rather_than_lost(local: Place) -> None:
    source = local.source(100)
    local.told(source, "--batch-size", "10")
    for number in range(4, 10):
        local.client.setbit(KEYS.pushed, number, 0)
    local.client.hset(KEYS.state, "status", "enqueueing")
    assert local.told(source, "--batch-size", "10")["pushed"] == 6
    local.assert_whole(100)


@pytest.mark.parametrize("pushed", [1, 700, 1400])
def test_killed_while_it_pushes_the_same_command_completes(local: Place, pushed: int) -> None:
    source = local.source(2000)
    kill_when(local, source, lambda: local.waiting() >= pushed, "--batch-size", "1")
    told = local.told(source, "--batch-size", "1")
    assert 0 <= told["pushed"] <= 2000
    local.assert_whole(2000)


def test_killed_twice_the_third_command_completes(local: Place) -> None:
    source = local.source(1000)
    kill_when(local, source, lambda: local.store.head(layout.input_shard(RUN, "00000100")) is not None, "--batch-size", "1")
    kill_when(local, source, lambda: local.waiting() > 0, "--batch-size", "1")
    local.told(source, "--batch-size", "1")
    local.assert_whole(1000)


def test_shards_of_an_interrupted_other_order_are_replaced_and_removed(place: Place) -> None:
    """Written as an interrupted enqueue leaves them: some equal, some different, some beyond the end, and its rejects."""
    source = place.source(30)
    place.told(source, "--batch-size", "8")
    equal = place.store.get(layout.input_shard(RUN, "00000001"))
    assert equal is not None
    for info in list(place.store.list("")):
        place.store.delete(info.key)
    place.client.flushall()
    place.store.put(layout.input_shard(RUN, "00000001"), equal)
    for number in (0, 3, 4, 5, 70):
        place.store.put(layout.input_shard(RUN, layout.batch_label(number)), b"of another order")
    place.store.put(layout.rejected(RUN), b"of another order")
    assert place.told(source, "--batch-size", "8")["pushed"] == 4
    place.assert_whole(30)
    assert place.store.get(layout.rejected(RUN)) is None
    assert place.store.get(layout.input_shard(RUN, "00000001")) == equal


def test_completions_of_an_earlier_run_of_the_name_are_not_taken_for_this_ones(place: Place) -> None:
    place.store.put_new(layout.completions_shard(RUN, layout.batch_label(3)), b"of another day")
    done = place.enqueue(place.source(100))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"run r: {place.store.url} holds completions of an earlier run of this name (runs/r/completions/00000003.jsonl.zst and "
        "perhaps more) without its manifest; restore that, or remove them, or use another --run"
    )
    assert not place.client.exists(KEYS.state)
    assert place.waiting() == 0


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


def test_no_redis_is_exit_3(local: Place) -> None:
    port = free_port()
    down = Place(f"redis://user:secret@127.0.0.1:{port}/0", local.store_url, local.folder)
    done = down.enqueue(local.source(3))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.splitlines()[-1] == (
        f"broker redis://***@127.0.0.1:{port}/0: Error 111 connecting to 127.0.0.1:{port}. Connection refused; "
        "is Redis up, and does FLEET_BROKER name it?"
    )
    assert "secret" not in done.stderr


def test_no_folder_is_exit_4(local: Place) -> None:
    (local.folder / "file").write_text("x")
    broken = Place(local.redis_url, f"file://{local.folder}/file/store", local.folder)
    done = broken.enqueue(local.source(3))
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.splitlines()[-1] == (
        f"store file://{local.folder}/file/store: write runs/r/inputs/00000000.jsonl.zst: Not a directory; "
        "check FLEET_STORE and AWS_ENDPOINT_URL"
    )


def test_no_s3_server_is_exit_4(redis_url: str, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    place = Place(redis_url, s3_url, tmp_path)
    done = place.enqueue(place.source(3))
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.splitlines()[-1] == (
        f'store {s3_url}: read runs/r/manifest.json: Could not connect to the endpoint URL: "{endpoint}/'
        f'{s3_url.removeprefix("s3://")}/runs/r/manifest.json"; check FLEET_STORE and AWS_ENDPOINT_URL'
    )


def test_sampling_from_a_file_is_overridden_by_options(local: Place) -> None:
    path = local.folder / "sampling.toml"
    path.write_text('max_tokens = 9\ntemperature = 0.2\nstop = ["a"]\n')
    local.told(local.source(3), "--sampling", str(path), "--temperature", "0.7", "--thinking", "on")
    sampling = local.manifest().sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.stop, sampling.thinking) == (9, 0.7, ("a",), True)
    path.write_text("heat = 1")
    done = local.enqueue(local.source(3), "--sampling", str(path))
    assert done.returncode == 2
    assert "heat: expected one of max_tokens, " in done.stderr


def test_a_store_that_cannot_be_used_leaves_no_trace_of_a_run(local: Place) -> None:
    nowhere = Place(local.redis_url, "file:///proc/nowhere", local.folder)
    done = nowhere.enqueue(local.source(3))
    assert done.returncode == 4
    assert "store file:///proc/nowhere: " in done.stderr
    assert local.client.keys() == []


def test_a_run_under_way_in_another_store_keeps_its_counters(local: Place) -> None:
    local.told(local.source(20), "--batch-size", "5")
    before = local.client.hgetall(KEYS.state)
    elsewhere = Place(local.redis_url, f"{local.store_url}-2", local.folder)
    for source in (local.source(20), local.source(3, "other.jsonl")):
        done = elsewhere.enqueue(source)
        assert done.returncode == 2
        assert f"run r exists with another FLEET_STORE: this command says {elsewhere.store_url}, the run has " in done.stderr
    assert local.client.hgetall(KEYS.state) == before
    local.assert_whole(20)
