"""The collected file: its rows, its order, and that it is whole or not there."""

import gzip
import json
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from producer.collect.command import collect
from producer.collect.output import OutputUnwritable
from tests.integration.producer_read.conftest import Run
from tests.integration.producer_read.stored_run import CREATED_AT, StoredRun, unpacked, write_run
from workers.contract.schema import Answer, encode_shard
from workers.contract.settings import FleetSettings
from workers.object_store import ObjectStore
from workers.store import open_store

pytestmark = pytest.mark.integration

KEYS = ["id", "row", "status", "reason", "message", "content", "reasoning_content", "output_ids", "finish_reason"]


@pytest.fixture
def stored(store: ObjectStore) -> StoredRun:
    return write_run(store)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder / "rows.jsonl"


def rows_of(body: bytes) -> list[Any]:
    return [json.loads(line) for line in body.splitlines()]


def test_one_row_per_prompt_in_source_order(stored: StoredRun, run_command: Run, out: Path) -> None:
    ran = run_command(collect, "r", "-o", str(out))
    assert ran.code == 0
    assert ran.out == ""
    assert "20 rows of run r to" in ran.err
    assert ": 18 ok, 2 failed; " in ran.err
    rows = rows_of(out.read_bytes())
    assert [row["id"] for row in rows] == [f"p{number}" for number in range(20)]
    assert [row["row"] for row in rows] == list(range(20))
    assert list(rows[0]) == [*KEYS, "usage", "flags", "provenance"]
    assert (rows[0]["content"], rows[0]["reasoning_content"], rows[0]["finish_reason"]) == ("answer 0", "because", "stop")
    assert rows[0]["usage"] == {"prompt_tokens": 5, "completion_tokens": 7, "reasoning_tokens": 2, "cached_tokens": None}
    assert rows[4]["flags"] == ["truncated"]
    assert rows[0]["provenance"]["worker"] == "gpu0@host"
    assert (rows[6]["status"], rows[6]["reason"], rows[6]["message"], rows[6]["content"]) == (
        "failed",
        "empty",
        "no text",
        None,
    )
    assert rows[6]["rejected"]["content"] == ""
    assert out.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_samples_carry_their_number(store: ObjectStore, run_command: Run, out: Path) -> None:
    write_run(store, rows=3, samples=2)
    assert run_command(collect, "r", "-o", str(out)).code == 0
    assert [(row["id"], row["sample"]) for row in rows_of(out.read_bytes())] == [
        (f"p{row}", sample) for row in range(3) for sample in range(2)
    ]
    assert run_command(collect, "r", "-o", str(out), "--force", "--format", "openai-batch").code == 0
    assert [row["custom_id"] for row in rows_of(out.read_bytes())][:3] == ["p0#0", "p0#1", "p1#0"]


def test_the_prompt_stands_beside_its_answer_if_wanted(stored: StoredRun, run_command: Run, out: Path) -> None:
    run_command(collect, "r", "-o", str(out), "--with-input")
    rows = rows_of(out.read_bytes())
    assert rows[3]["input"] == {"messages": [{"role": "user", "content": "question 3"}]}
    assert rows[9]["input"] == {"text": "text 9"}


def test_openai_batch_lines(stored: StoredRun, run_command: Run, out: Path) -> None:
    assert run_command(collect, "r", "-o", str(out), "--format", "openai-batch").code == 0
    rows = rows_of(out.read_bytes())
    assert rows[0] == {
        "id": "batch_req_r-00000000-0",
        "custom_id": "p0",
        "response": {
            "status_code": 200,
            "request_id": "r0",
            "body": {
                "id": "chatcmpl-r0",
                "object": "chat.completion",
                "created": int(CREATED_AT + 2.5),
                "model": "m",
                "choices": [
                    {
                        "index": 0,
                        "message": {
                            "role": "assistant",
                            "content": "answer 0",
                            "refusal": None,
                            "reasoning_content": "because",
                        },
                        "logprobs": None,
                        "finish_reason": "stop",
                    }
                ],
                "usage": {
                    "prompt_tokens": 5,
                    "completion_tokens": 7,
                    "total_tokens": 12,
                    "completion_tokens_details": {"reasoning_tokens": 2},
                },
            },
        },
        "error": None,
    }
    assert (rows[6]["response"], rows[6]["error"]) == (None, {"code": "empty", "message": "no text"})
    assert rows[9]["response"]["body"]["object"] == "text_completion"
    assert rows[9]["response"]["body"]["choices"][0]["text"] == "answer 9"


def test_ids_that_are_numbers_stay_numbers_and_become_text_for_openai(store: ObjectStore, run_command: Run, out: Path) -> None:
    from workers.contract.schema import encode_manifest, encode_shard, shard_digest

    stored = write_run(store, rows=1, answered=0)
    asked = msgspec.structs.replace(stored.prompts[0][0], id=17)
    body = encode_shard([asked])
    store.put(stored.input_key(0), body)
    store.put(
        "runs/r/manifest.json", encode_manifest(msgspec.structs.replace(stored.manifest, shard_digests=shard_digest(body)))
    )
    stored.prompts[0][0] = asked
    stored.answer(0)
    run_command(collect, "r", "-o", str(out))
    assert rows_of(out.read_bytes())[0]["id"] == 17
    run_command(collect, "r", "-o", str(out), "--force", "--format", "openai-batch")
    assert rows_of(out.read_bytes())[0]["custom_id"] == "17"


@pytest.mark.parametrize(("only", "rows"), [("ok", 18), ("failed", 2), ("all", 20)])
def test_only_some_rows(stored: StoredRun, run_command: Run, out: Path, only: str, rows: int) -> None:
    run_command(collect, "r", "-o", str(out), "--only", only)
    assert len(rows_of(out.read_bytes())) == rows


def test_failed_rows_go_apart(stored: StoredRun, run_command: Run, out: Path) -> None:
    apart = out.with_name("errors.jsonl")
    ran = run_command(collect, "r", "-o", str(out), "--format", "openai-batch", "--errors", str(apart))
    assert ran.code == 0
    assert len(rows_of(out.read_bytes())) == 18
    assert [row["custom_id"] for row in rows_of(apart.read_bytes())] == ["p6", "p13"]
    ran = run_command(collect, "r", "-o", str(out), "--errors", str(out))
    assert (ran.code, "--errors and -o both name" in ran.err) == (2, True)


def test_suffixes_compress(stored: StoredRun, run_command: Run, out: Path) -> None:
    for suffix, unpack in ((".gz", gzip.decompress), (".zst", unpacked)):
        path = Path(f"{out}{suffix}")
        assert run_command(collect, "r", "-o", str(path)).code == 0
        assert len(rows_of(unpack(path.read_bytes()))) == 20


def test_a_pipe_or_a_device_is_written_into_and_never_replaced(stored: StoredRun, run_command: Run, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    assert run_command(collect, "r", "-o", str(pipe)).code == 0
    reader.join(timeout=10)
    assert len(rows_of(read[0])) == 20
    assert pipe.is_fifo()
    assert run_command(collect, "r", "-o", os.devnull).code == 0
    assert Path(os.devnull).is_char_device()


def test_stdout_has_the_rows_and_stderr_the_document(stored: StoredRun, run_command: Run) -> None:
    ran = run_command(collect, "r", "-o", "-", "--json")
    assert len(rows_of(ran.out_bytes)) == 20
    assert json.loads(ran.err)["ok"] == 18


def test_a_file_leaves_the_document_on_stdout(stored: StoredRun, run_command: Run, out: Path) -> None:
    told = run_command(collect, "r", "-o", str(out), "--json").json
    assert {name: told[name] for name in ("run", "rows", "ok", "failed", "missing", "failures")} == {
        "run": "r",
        "rows": 20,
        "ok": 18,
        "failed": 2,
        "missing": 0,
        "failures": {"empty": 2},
    }
    assert told["bytes"] == out.stat().st_size


def test_an_output_that_exists_stays(stored: StoredRun, run_command: Run, out: Path) -> None:
    out.write_text("mine")
    ran = run_command(collect, "r", "-o", str(out))
    assert (ran.code, out.read_text()) == (2, "mine")
    assert ran.err == f"{out} exists; take another name, or replace it with --force"
    assert run_command(collect, "r", "-o", str(out), "--force").code == 0
    assert len(rows_of(out.read_bytes())) == 20


def test_an_answer_that_was_changed_in_the_store_is_not_collected(stored: StoredRun, run_command: Run, out: Path) -> None:
    first, *rest = stored.outcomes(3)
    stored.rewrite_raw(3, encode_shard([msgspec.structs.replace(first, answer=Answer(content="another")), *rest]))
    ran = run_command(collect, "r", "-o", str(out))
    assert ran.code == 1
    assert f"{stored.output_key(3)}: found " in ran.err
    assert not out.exists()


def test_an_incomplete_run_is_refused_before_anything_is_written(store: ObjectStore, run_command: Run, out: Path) -> None:
    write_run(store, answered=3)
    ran = run_command(collect, "r", "-o", str(out))
    assert (ran.code, list(out.parent.iterdir())) == (1, [])
    assert ran.err == (
        "run r: 8 of 20 prompts have no outcome yet; wait (`producer status r`), or take what is there with --partial"
    )
    ran = run_command(collect, "r", "-o", str(out), "--partial")
    assert (ran.code, len(rows_of(out.read_bytes()))) == (0, 12)
    assert "8 prompts without an outcome yet" in ran.err


def test_a_corrupt_shard_leaves_no_file(stored: StoredRun, run_command: Run, out: Path) -> None:
    stored.rewrite_raw(4, b"?")
    ran = run_command(collect, "r", "-o", str(out))
    assert (ran.code, list(out.parent.iterdir())) == (1, [])
    assert f"{stored.output_key(4)}: found" in ran.err


def test_a_doubled_row_is_never_collected(stored: StoredRun, run_command: Run, out: Path) -> None:
    rows = stored.outcomes(1)
    stored.rewrite(1, [*rows, rows[0]])
    ran = run_command(collect, "r", "-o", str(out))
    assert ran.code == 1
    assert "found a bad row for prompt 0, expected one sound outcome for each prompt" in ran.err
    stored.rewrite(1, rows[1:])
    assert "found 3 rows for 4 prompts" in run_command(collect, "r", "-o", str(out)).err


def test_a_folder_that_is_missing_is_said(stored: StoredRun, run_command: Run, out: Path) -> None:
    ran = run_command(collect, "r", "-o", str(out.parent / "absent" / "x.jsonl"))
    assert ran.code == 1
    assert "No such file or directory; nothing was left under that name" in ran.err
    ran = run_command(collect, "r", "-o", str(out.parent), "--force")
    assert ran.err == f"cannot write {out.parent}: it is a folder; nothing was left under that name"


def test_a_full_disk_leaves_nothing(stored: StoredRun, run_command: Run, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    ran = run_command(collect, "r", "-o", str(out))
    monkeypatch.undo()
    assert (ran.code, list(out.parent.iterdir())) == (1, [])
    assert ran.err == str(OutputUnwritable(str(out), "No space left on device"))


def test_an_object_in_another_place_of_s3(
    stored: StoredRun, run_command: Run, s3_url: str, fleet_settings: FleetSettings
) -> None:
    target = f"{s3_url}/elsewhere/rows.jsonl.zst"
    assert run_command(collect, "r", "-o", target).code == 0
    body = open_store(fleet_settings, s3_url).get("elsewhere/rows.jsonl.zst")
    assert len(rows_of(unpacked(body or b""))) == 20
    ran = run_command(collect, "r", "-o", target)
    assert (ran.code, ran.err) == (2, f"{target} exists; take another name, or replace it with --force")
    ran = run_command(collect, "r", "-o", "s3://bucket")
    assert "it names no object, expected s3://bucket/key" in ran.err
