"""Break each thing that a run consists of, and see the audit name it."""

import msgspec
import pytest
import redis

from producer.audit import audit
from tests.integration.producer_read.conftest import Ran, Run
from tests.integration.producer_read.stored_run import StoredRun, write_run
from workers.contract import layout
from workers.contract.schema import Answer, ShardCounts, encode_shard
from workers.object_store import ObjectStore

pytestmark = pytest.mark.integration


@pytest.fixture
def stored(store: ObjectStore) -> StoredRun:
    return write_run(store)


def audited(run_command: Run, *, clean: bool = False) -> Ran:
    ran = run_command(audit, "r", "--json")
    assert ran.code == (0 if clean else 1), ran.err
    assert ran.json["clean"] is clean, ran.json["problems"]
    return ran


def counts(ran: Ran) -> dict[str, int]:
    return {kind: ran.json[kind] for kind in ("missing", "doubled", "orphan", "corrupt") if ran.json[kind]}


def test_a_whole_run_is_clean(stored: StoredRun, run_command: Run) -> None:
    told = audited(run_command, clean=True).json
    assert (told["run"], told["rows"], told["ok"], told["failed"]) == ("r", 20, 18, 2)
    assert (told["missing"], told["doubled"], told["orphan"], told["corrupt"]) == (0, 0, 0, 0)
    text = run_command(audit, "r").out
    assert text == "run r is clean: each of its 20 prompts has exactly one outcome\n  18 ok, 2 failed\n"


def test_samples_are_told_apart(store: ObjectStore, run_command: Run) -> None:
    stored = write_run(store, rows=4, samples=3)
    assert audited(run_command, clean=True).json["rows"] == 12
    rows = stored.outcomes(0)
    stored.rewrite(0, [*rows[:2], *rows[3:]])
    ran = audited(run_command)
    assert counts(ran) == {"missing": 1}
    assert ran.json["examples"]["missing"] == ["p0#2"]


def test_a_missing_shard_means_missing_prompts(stored: StoredRun, run_command: Run) -> None:
    stored.store.delete(stored.output_key(2))
    ran = audited(run_command)
    assert counts(ran) == {"missing": 4}
    assert ran.json["examples"]["missing"] == ["p8", "p9", "p10", "p11"]
    text = run_command(audit, "r").out
    assert "4 missing (prompts without an outcome): p8, p9, p10, p11" in text
    assert "Next: `producer status r`; if nothing works on them, `producer resume r`" in text


def test_a_doubled_row_is_counted_once(stored: StoredRun, run_command: Run) -> None:
    rows = stored.outcomes(1)
    stored.rewrite(1, [*rows, rows[2]])
    ran = audited(run_command)
    assert counts(ran) == {"doubled": 1}
    assert ran.json["examples"]["doubled"] == ["p6"]
    assert ran.json["ok"] + ran.json["failed"] == 20


@pytest.mark.parametrize("change", [{"id": "stranger"}, {"row": 99}, {"sample": 1}, {"index": 77}])
def test_a_row_of_no_prompt_is_an_orphan_and_its_prompt_missing(
    stored: StoredRun, run_command: Run, change: dict[str, object]
) -> None:
    rows = stored.outcomes(0)
    stored.rewrite(0, [msgspec.structs.replace(rows[0], **change), *rows[1:]])
    ran = audited(run_command)
    assert counts(ran) == {"missing": 1, "orphan": 1}
    assert ran.json["examples"]["missing"] == ["p0"]


def test_the_type_of_an_id_counts(stored: StoredRun) -> None:
    from producer.findings import belongs

    asked, told = stored.prompts[0][0], stored.outcomes(0)[0]
    asked, told = msgspec.structs.replace(asked, id=1), msgspec.structs.replace(told, id="1")
    assert not belongs(told, [asked])


@pytest.mark.parametrize("body", [b"", b"not zstd"])
def test_a_shard_that_cannot_be_read_is_corrupt(stored: StoredRun, run_command: Run, body: bytes) -> None:
    stored.rewrite_raw(3, body)
    ran = audited(run_command)
    assert counts(ran) == {"corrupt": 4}
    assert f"{stored.output_key(3)}: found" in ran.json["problems"][0]


def test_half_a_shard_is_corrupt(stored: StoredRun, run_command: Run) -> None:
    body = stored.store.get(stored.output_key(3)) or b""
    stored.rewrite_raw(3, body[: len(body) // 2])
    ran = audited(run_command)
    assert ran.json["corrupt"] == 4
    assert ran.json["examples"]["corrupt"] == ["p12", "p13", "p14", "p15"]
    assert "00000003.jsonl.zst: found" in ran.json["problems"][0]


def test_a_changed_answer_is_corrupt_though_its_shard_can_be_read(stored: StoredRun, run_command: Run) -> None:
    first, *rest = stored.outcomes(3)
    changed = msgspec.structs.replace(first, answer=Answer(content="another answer"))
    stored.rewrite_raw(3, encode_shard([changed, *rest]))
    ran = audited(run_command)
    assert counts(ran) == {"corrupt": 4}
    assert "restore the object, or delete it to have its prompts generated again" in ran.json["problems"][0]


def test_a_run_that_only_lacks_outcomes_is_called_incomplete(stored: StoredRun, run_command: Run) -> None:
    stored.store.delete(stored.output_key(3))
    text = run_command(audit, "r")
    assert text.code == 1
    assert text.out.startswith("run r is not complete: 4 prompts without an outcome, nothing else is wrong\n")
    stored.rewrite_raw(2, b"?")
    assert run_command(audit, "r").out.startswith("run r is not clean\n")


def test_a_lost_input_shard_is_named(stored: StoredRun, run_command: Run) -> None:
    stored.store.delete(stored.input_key(4))
    ran = audited(run_command)
    assert counts(ran) == {"corrupt": 4}
    expected = f"{stored.input_key(4)}: found nothing, expected an input shard; restore the object, then `producer resume`"
    assert ran.json["problems"] == [expected]


def test_an_altered_input_shard_is_named_with_both_digests(stored: StoredRun, run_command: Run) -> None:
    stored.store.put(stored.input_key(4), encode_shard(stored.prompts[0]))
    ran = audited(run_command)
    assert counts(ran) == {"corrupt": 4}
    assert f"expected digest {stored.manifest.digest_of(4)}" in ran.json["problems"][0]


def test_counts_that_differ_from_the_rows_are_named(stored: StoredRun, run_command: Run) -> None:
    rows = stored.outcomes(2)
    stored.rewrite(2, rows, told=ShardCounts(completed=99))
    ran = audited(run_command)
    assert counts(ran) == {"corrupt": 1}
    assert ran.json["problems"] == ["completions of batch 00000002: its metadata says completed 99, its rows make 4"]


def test_a_shard_without_counts_is_named(stored: StoredRun, run_command: Run) -> None:
    stored.store.put(stored.output_key(2), encode_shard(stored.outcomes(2)))
    ran = audited(run_command)
    assert "found no fleet-counts in its metadata" in ran.json["problems"][0]


def test_shards_of_unknown_batches_are_orphans(stored: StoredRun, run_command: Run) -> None:
    for key in ("00000005", "r01-00000001"):
        stored.store.put(layout.completions_shard("r", key), encode_shard(stored.outcomes(0)))
    stored.store.put(f"{layout.completions_prefix('r')}notes.txt", b"?")
    ran = audited(run_command)
    assert counts(ran) == {"orphan": 8, "corrupt": 1}
    assert sum("no batch of the manifest has this name" in problem for problem in ran.json["problems"]) == 3


def test_a_good_row_without_an_answer_is_corrupt(stored: StoredRun, run_command: Run) -> None:
    rows = stored.outcomes(0)
    stored.rewrite(0, [msgspec.structs.replace(rows[0], answer=None), *rows[1:]])
    ran = audited(run_command)
    assert counts(ran) == {"corrupt": 1}
    assert ran.json["examples"]["corrupt"] == ["p0"]


def test_at_most_a_hundred_examples_of_a_kind(store: ObjectStore, run_command: Run) -> None:
    write_run(store, rows=150, batch_size=50, answered=0)
    ran = audited(run_command)
    assert ran.json["missing"] == 150
    assert len(ran.json["examples"]["missing"]) == 100


def test_ids_cannot_steer_the_terminal(store: ObjectStore, run_command: Run) -> None:
    stored = write_run(store)
    rows = stored.outcomes(0)
    stored.rewrite(0, [*rows, msgspec.structs.replace(rows[0], index=50, id="a\x1b[2J\u202eb")])
    text = run_command(audit, "r").out
    assert "a\\x1b[2J\\u202eb" in text
    assert "\x1b" not in text


def test_an_unknown_run_is_named(stored: StoredRun, run_command: Run) -> None:
    ran = run_command(audit, "nobody")
    assert ran.code == 2
    assert ran.err == f"no run nobody in {stored.store.url}; `producer runs` lists those that are there"
    assert run_command(audit, "../r").code == 2


def test_a_store_without_any_run_is_perhaps_the_wrong_one(
    store: ObjectStore, run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLEET_BROKER")  # nothing here asks Redis
    ran = run_command(audit, "r")
    assert ran.code == 2
    assert ran.err == f"no run r in {store.url}, which holds no run at all; does FLEET_STORE name the right place?"


def test_repair_sets_the_counters_to_what_the_store_says(stored: StoredRun, run_command: Run, client: "redis.Redis") -> None:
    ran = run_command(audit, "r", "--repair", "--json")
    assert ran.code == 0
    assert ran.json["repaired"]["completed"] == 18
    assert client.hget("fleet:{r}:counts", "failed") == b"2"
    text = run_command(audit, "r", "--repair").out
    assert (
        "counters of r in Redis computed anew: 18 completed, 2 failed, 0 pending; 5 of 5 batches done, status complete" in text
    )
