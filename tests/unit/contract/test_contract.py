"""The contract: golden encodings of version 1, errors that cross processes, names, layout, settings, request bodies."""

import inspect
import json
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.crc import key_slot

from workers.contract import errors, layout, names
from workers.contract.broker_url import without_password
from workers.contract.errors import ContractMismatch, FleetError, SettingsError, ShardCorrupt
from workers.contract.names import RunKeys
from workers.contract.request import request_of
from workers.contract.schema import (
    Answer,
    BatchMessage,
    Completion,
    Manifest,
    Prompt,
    Provenance,
    Sampling,
    ShardCounts,
    Usage,
    check_digest,
    decode_completions,
    decode_manifest,
    decode_message,
    decode_prompts,
)
from workers.contract.settings import FleetSettings, read_settings
from workers.settings import WorkerSettings

ROOT = Path(__file__).parents[3]
GOLDEN = Path(__file__).parents[2] / "golden" / "contract" / "v1"

PROMPTS = [
    Prompt(
        "a", 0, messages=msgspec.Raw('[{"role":"user","content":"多 é"}]'.encode()), tools=msgspec.Raw(b'[{"type":"function"}]')
    ),
    Prompt(7, 1, text="hello"),
    Prompt("b", 2, sample=1, input_ids=(1, 2, 3), sampling=Sampling(max_tokens=5, stop=("x",), thinking=False)),
]
COMPLETIONS = [
    Completion(
        index=0,
        id="a",
        row=0,
        status="ok",
        answer=Answer("Paris.", "thinking", (1, 2), ({"id": "1", "type": "function"},)),
        finish_reason="stop",
        matched_stop=2,
        usage=Usage(5, 7, 3, 1),
        flags=("truncated",),
        provenance=Provenance("gpu0@h", "0.5.11", "m", 2, 1, "f" * 32, 1796094891.5, 1.25, 3, 0),
    ),
    Completion(
        index=1,
        id=7,
        row=1,
        status="failed",
        reason="empty",
        message="nothing visible in 3 tokens",
        rejected=Answer(""),
        provenance=Provenance("gpu1@h"),
    ),
]
MANIFEST = Manifest(
    run="r",
    created_at=1796094891.5,
    sources=("f.jsonl",),
    source_sha256="0" * 64,
    source_bytes=100,
    accepted=3,
    rejected=1,
    reject_reasons={"nul": 1},
    prompts=3,
    batches=2,
    batch_size=2,
    samples=1,
    sampling=Sampling(max_tokens=64, temperature=0.5),
    shard_digests="0123456789abcdeffedcba9876543210",
    limit=3,
    model="m",
    priority=4,
    producer_version="0.1.0",
)
MESSAGE = BatchMessage("r", "00000001", "fedcba9876543210")


def test_a_prompt_shard_of_version_1_is_read() -> None:
    assert decode_prompts("k", (GOLDEN / "prompts.jsonl.zst").read_bytes()) == PROMPTS


def test_a_completions_shard_of_version_1_is_read() -> None:
    assert decode_completions("k", (GOLDEN / "completions.jsonl.zst").read_bytes()) == COMPLETIONS


def test_a_manifest_of_version_1_is_read() -> None:
    manifest = decode_manifest("k", (GOLDEN / "manifest.json").read_bytes())
    assert manifest == MANIFEST
    assert (manifest.digest_of(1), manifest.prompts_in(0), manifest.prompts_in(1)) == ("fedcba9876543210", 2, 1)


def test_a_message_of_version_1_is_read_and_small() -> None:
    body = (GOLDEN / "message.json").read_bytes()
    assert decode_message(json.loads(body)) == MESSAGE
    assert len(body) < 1024


@pytest.mark.parametrize("name", ["prompts.jsonl.zst", "completions.jsonl.zst"])
def test_half_a_shard_is_corrupt(name: str) -> None:
    body = (GOLDEN / name).read_bytes()
    decode = decode_prompts if name.startswith("prompts") else decode_completions
    for cut in (0, 1, len(body) // 2, len(body) - 1):
        with pytest.raises(ShardCorrupt):
            decode("runs/r/k", body[:cut])


def test_a_later_schema_is_refused_with_both_versions() -> None:
    later = msgspec.json.encode(msgspec.structs.replace(MANIFEST, schema=2))
    with pytest.raises(ContractMismatch, match="k: schema 2, this program reads 1; upgrade the older side"):
        decode_manifest("k", later)
    with pytest.raises(ContractMismatch, match="batch message: schema 2"):
        decode_message({**msgspec.to_builtins(MESSAGE), "schema": 2})
    with pytest.raises(ContractMismatch, match="missing required field `batch`"):
        decode_message({"run": "r"})


def test_fields_of_a_later_version_are_passed_over() -> None:
    assert decode_message({**msgspec.to_builtins(MESSAGE), "later": 1}) == MESSAGE
    line = msgspec.json.decode(msgspec.json.encode(COMPLETIONS[1])) | {"later": [1]}
    assert msgspec.convert(line, Completion) == COMPLETIONS[1]


def test_counts_of_a_shard_survive_as_metadata() -> None:
    counts = ShardCounts.of(COMPLETIONS)
    assert counts == ShardCounts(1, 1, 5, 7, {"empty": 1}, {"truncated": 1})
    assert ShardCounts.from_metadata("k", counts.to_metadata(b"shard")) == counts
    with pytest.raises(ShardCorrupt, match="no fleet-counts"):
        ShardCounts.from_metadata("k", {})


def test_a_shard_that_was_changed_or_cut_differs_from_its_metadata() -> None:
    metadata = ShardCounts.of(COMPLETIONS).to_metadata(b"shard")
    check_digest("k", b"shard", metadata)
    check_digest("k", b"anything", {})  # written before there was a digest
    with pytest.raises(ShardCorrupt, match="k: found 6 bytes, expected the 5 bytes that its worker wrote"):
        check_digest("k", b"shard!", metadata)
    with pytest.raises(ShardCorrupt, match=r"k: found digest [0-9a-f]{16}, expected digest [0-9a-f]{16}"):
        check_digest("k", b"shart", metadata)


ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, FleetError)]
SAMPLE_VALUES: dict[str, Any] = {
    "retry_after_s": 2.0,
    "free_bytes": 4096,
    "kind": "lost",
    "status": 400,
    "missing": 3,
    "total": 9,
    "rejected": 1,
    "accepted": 2,
}


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_survives_pickling_with_its_sentence_and_code(kind: type[FleetError]) -> None:
    parameters = [] if kind.__init__ is Exception.__init__ else list(inspect.signature(kind).parameters)
    takes_values = "args" not in parameters
    error = kind(*(SAMPLE_VALUES.get(name, name) for name in parameters)) if takes_values else kind()
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert (str(back), back.exit_code) == (str(error), error.exit_code)
    if takes_values and kind.__doc__:
        for name in parameters:
            if name not in SAMPLE_VALUES:
                assert name in str(error), f"{name} does not appear in: {error}"


def test_the_table_of_keys_and_the_keys_of_a_run_are_the_same() -> None:
    keys = RunKeys("RUN")
    made = {getattr(keys, name) for name in dir(RunKeys) if isinstance(getattr(RunKeys, name), property)}
    made |= {keys.checkpoints("BATCH"), names.RUNS, names.SWEEP, names.worker_key("WORKER")}
    table = {
        key.pattern.replace("<run>", "RUN").replace("<batch>", "BATCH").replace("<worker>", "WORKER") for key in names.KEYS
    }
    assert made == table


def test_all_keys_of_a_run_share_one_cluster_slot() -> None:
    keys = RunKeys("a.b-c")
    assert all("{a.b-c}" in key for key in (*keys.lasting(), keys.checkpoints("00000000"), keys.beat, keys.enqueue))


@pytest.mark.parametrize("run", ["r", "my.run-1", "a.00000001.x"])
def test_a_task_id_names_run_and_batch(run: str) -> None:
    assert names.parse_task_id(names.task_id(run, "00000012", "5f3a")) == (run, "00000012")
    assert names.parse_task_id("no-dots") is None


def test_nine_is_served_before_zero_and_recovered_before_new() -> None:
    order = [
        names.broker_priority(9, recovered=True),
        names.broker_priority(9),
        names.broker_priority(4),
        names.broker_priority(0),
    ]
    assert order == sorted(order)
    assert names.broker_priority(4, recovered=True) < names.broker_priority(4)
    assert all(0 <= value < names.PRIORITY_LEVELS for value in order)


@pytest.mark.parametrize(
    ("label", "parsed"), [("00000012", 12), ("r01-00000012", None), ("12", None), ("x0000001", None), ("٠٠٠٠٠٠١٢", None)]
)
def test_batch_labels(label: str, parsed: int | None) -> None:
    assert layout.parse_batch_label(label) == parsed
    if parsed:
        assert layout.batch_label(parsed) == label
        assert layout.batch_of_key(layout.input_shard("r", label)) == label


ENVIRONMENT = {"FLEET_BROKER": "redis://h:6379/0", "FLEET_STORE": "s3://bucket/prefix"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"FLEET_BROKER": ""}, "FLEET_BROKER is not set, expected Redis"),
        ({"FLEET_BROKER": "amqp://h"}, "FLEET_BROKER is 'amqp://h', expected redis://[user:password@]host:6379/0, rediss://"),
        ({"FLEET_BROKER": "http://user:secret@h"}, "FLEET_BROKER is 'http://***@h'"),
        ({"FLEET_STORE": "/tmp/x"}, "FLEET_STORE is '/tmp/x', expected `s3://bucket/prefix`, or `file:///dir`"),
        ({"FLEET_LEASE_S": "soon"}, "FLEET_LEASE_S is 'soon', expected a number (a batch runs elsewhere"),
        ({"FLEET_LEASE_S": "0"}, "FLEET_LEASE_S is '0', expected a number of at least 1 (a batch"),
        ({"FLEET_LEASE_S": "5"}, "FLEET_LEASE_RENEWAL_S is 3.0, expected at most a third of FLEET_LEASE_S=5.0"),
        ({"FLEET_LOG": "xml"}, "FLEET_LOG is 'xml', expected one of json, console (`json`, or"),
        ({"FLEET_LOG_LEVEL": "INFO"}, "FLEET_LOG_LEVEL is 'INFO', expected one of debug, info, warning, error (the least"),
        ({"FLEET_S3_OLD_CHECKSUMS": "perhaps"}, "FLEET_S3_OLD_CHECKSUMS is 'perhaps', expected true or false (`true` for"),
        ({"FLEET_LEASE_S": "inf"}, "FLEET_LEASE_S is 'inf', expected a number of at most 86400 (a batch"),
        ({"FLEET_BROKER": "redis://h:port/0"}, "FLEET_BROKER is 'redis://h:port/0', expected redis://[user:"),
        ({"FLEET_BROKER": "redis://[::1/0"}, "FLEET_BROKER is 'redis://[::1/0', expected redis://[user:"),
    ],
)
def test_a_wrong_setting_names_itself_what_was_found_and_what_was_expected(changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings(FleetSettings, ENVIRONMENT | changes)
    assert str(caught.value).startswith(sentence)
    assert caught.value.exit_code == 2
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"ENGINE_URL": "127.0.0.1:30000"},
            "ENGINE_URL is '127.0.0.1:30000', expected the SGLang server of",
        ),
        ({"ENGINE_URL": "http://127.0.0.1:port"}, "ENGINE_URL is 'http://127.0.0.1:port', expected scheme://host:port"),
        ({"ENGINE_URL": "http://[::1"}, "ENGINE_URL is 'http://[::1', expected scheme://host:port"),
        ({"ENGINE_URL": "http://"}, "ENGINE_URL is 'http://', expected"),
        ({"ENGINE_API_KEY": "ké"}, "ENGINE_API_KEY is '…', expected printable ASCII characters"),
        ({"ENGINE_API_KEY": "a\nb"}, "ENGINE_API_KEY is '…', expected printable ASCII characters"),
        ({"FLEET_SLOTS": "many"}, "FLEET_SLOTS is 'many', expected requests in flight: a number, or `auto`"),
        ({"FLEET_MAX_TRIES": "0"}, "FLEET_MAX_TRIES is '0', expected a whole number of at least 1 (tries"),
    ],
)
def test_a_wrong_setting_of_a_worker_names_itself(changes: dict[str, str], sentence: str) -> None:
    good = read_settings(WorkerSettings, {"ENGINE_URL": "http://127.0.0.1:30000", "ENGINE_API_KEY": "key"})
    assert (good.slots, good.fixed_slots(), good.engine_api_key) == ("auto", None, "key")
    with pytest.raises(SettingsError) as caught:
        read_settings(WorkerSettings, {"ENGINE_URL": "http://127.0.0.1:30000"} | changes)
    assert str(caught.value).startswith(sentence)


def test_a_password_is_not_shown() -> None:
    assert without_password("redis://user:pa@ss@h:1/0") == "redis://***@h:1/0"
    assert without_password("redis://h:1/0") == "redis://h:1/0"


EVERY = Sampling(5, 0.5, 0.9, 20, 0.1, 0.2, 0.3, 1.1, ("x",), 7, True)


def test_a_chat_request_names_every_sampling_value_as_openai_does() -> None:
    path, body = request_of(PROMPTS[0], EVERY, "m")
    assert path == "/v1/chat/completions"
    assert json.loads(body) == {
        "messages": [{"role": "user", "content": "多 é"}],
        "tools": [{"type": "function"}],
        "model": "m",
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.1,
        "stop": ["x"],
        "seed": 7,
        "chat_template_kwargs": {"enable_thinking": True},
    }


@pytest.mark.parametrize(("prompt", "source"), [(PROMPTS[1], {"text": "hello"}), (PROMPTS[2], {"input_ids": [1, 2, 3]})])
def test_a_native_request_names_every_sampling_value_as_sglang_does(prompt: Prompt, source: dict[str, object]) -> None:
    path, body = request_of(prompt, EVERY)
    assert path == "/generate"
    assert json.loads(body) == source | {
        "sampling_params": {
            "max_new_tokens": 5,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 20,
            "min_p": 0.1,
            "presence_penalty": 0.2,
            "frequency_penalty": 0.3,
            "repetition_penalty": 1.1,
            "stop": ["x"],
            "sampling_seed": 7,
        }
    }


def test_what_is_not_set_is_not_sent() -> None:
    assert json.loads(request_of(PROMPTS[1], Sampling(max_tokens=9))[1]) == {
        "text": "hello",
        "sampling_params": {"max_new_tokens": 9},
    }


def test_a_row_overrides_only_what_it_sets() -> None:
    merged = Sampling(max_tokens=64, temperature=0.5).overridden_by(Sampling(temperature=0.0))
    assert merged == Sampling(max_tokens=64, temperature=0.0)


@pytest.mark.parametrize("run", ["r", "my.run-1_b", "a" * 64, "r~r01"])
def test_all_keys_of_a_run_lie_in_one_slot_of_a_cluster(run: str) -> None:
    keys = RunKeys(run)
    everything = {*keys.lasting(), keys.beat, keys.enqueue, keys.checkpoints("00000000"), keys.checkpoints("00000001")}
    assert len({key_slot(key.encode()) for key in everything}) == 1
    assert key_slot(keys.state.encode()) == key_slot(run.encode())


def test_scripts_name_no_key_themselves() -> None:
    scripts = [*(ROOT / "workers").rglob("*.lua"), *(ROOT / "producer").rglob("*.lua")]
    assert len(scripts) >= 9
    for script in scripts:
        code = "\n".join(line.partition("--")[0] for line in script.read_text().splitlines())
        assert "fleet:" not in code, f"{script}: keys come as KEYS, or are made from a prefix that comes as an argument"
