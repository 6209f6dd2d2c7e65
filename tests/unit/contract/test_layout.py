"""Keys of the store: each names its run and batch, none can be taken for another, and none leaves its run."""

import pytest

from workers.contract import layout, names

RUN = "my.run-1"


def test_every_key_of_version_1_stays_as_it_is() -> None:
    assert [
        layout.run_prefix(RUN),
        layout.manifest(RUN),
        layout.rejected(RUN),
        layout.inputs_prefix(RUN),
        layout.completions_prefix(RUN),
        layout.input_shard(RUN, layout.batch_label(12)),
        layout.completions_shard(RUN, layout.batch_label(12)),
        layout.completions_shard(names.repair_name(RUN, 1), layout.batch_label(12)),
        layout.manifest(names.repair_name(RUN, 99)),
    ] == [
        "runs/my.run-1/",
        "runs/my.run-1/manifest.json",
        "runs/my.run-1/rejected.jsonl.zst",
        "runs/my.run-1/inputs/",
        "runs/my.run-1/completions/",
        "runs/my.run-1/inputs/00000012.jsonl.zst",
        "runs/my.run-1/completions/00000012.jsonl.zst",
        "runs/my.run-1/repairs/r01/completions/00000012.jsonl.zst",
        "runs/my.run-1/repairs/r99/manifest.json",
    ]


@pytest.mark.parametrize("number", [0, 1, 7, 99_999_999])
@pytest.mark.parametrize("run", [RUN, names.repair_name(RUN, 1), names.repair_name(RUN, 99)])
def test_a_label_and_its_key_come_back(number: int, run: str) -> None:
    label = layout.batch_label(number)
    assert layout.parse_batch_label(label) == number
    for key in (layout.input_shard(run, label), layout.completions_shard(run, label)):
        assert layout.batch_of_key(key) == label
        assert key.startswith(layout.run_prefix(run))
        assert key.startswith(layout.run_prefix(RUN))
    assert names.parse_task_id(names.task_id(run, label, "5f3a")) == (run, label)


def test_a_repair_lies_in_its_run_and_no_person_can_name_one() -> None:
    name = names.repair_name(RUN, 7)
    assert names.parse_repair(name) == (RUN, 7)
    assert names.parse_repair(RUN) == (RUN, None)
    assert not names.RUN_NAME.fullmatch(name)
    assert layout.repair_of_prefix(RUN, layout.run_prefix(name)) == name
    for other in ("", "r7/", "r007/", "x07/", "r07/inputs/"):
        assert layout.repair_of_prefix(RUN, layout.repairs_prefix(RUN) + other) is None


def test_labels_sort_as_their_numbers() -> None:
    labels = [layout.batch_label(number) for number in (0, 9, 10, 99, 100, 12_345_678)]
    assert labels == sorted(labels)


@pytest.mark.parametrize(
    "key",
    [
        layout.manifest(RUN),
        layout.rejected(RUN),
        layout.progress(RUN),
        layout.inputs_prefix(RUN),
        "runs/r/inputs/00000012.jsonl",
        "runs/r/inputs/00000012.jsonl.zst.tmp",
        "runs/r/inputs/000000123.jsonl.zst",
        "runs/r/inputs/r1-00000012.jsonl.zst",
        "runs/r/inputs/00000012\n.jsonl.zst",
        "",
    ],
)
def test_what_is_no_shard_names_no_batch(key: str) -> None:
    assert layout.batch_of_key(key) is None
