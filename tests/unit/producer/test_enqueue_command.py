"""Options of `producer enqueue` up to the point where the fleet would be asked: sampling, names, and the dry run."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from producer.enqueue_command import enqueue
from workers.contract.errors import RowRejected, SourceUnreadable

ROW = '{"id": "a", "text": "t"}\n'


def rehearsed(folder: Path, *options: str, rows: str = ROW) -> Result:
    source = folder / "source.jsonl"
    source.write_text(rows)
    return CliRunner().invoke(enqueue, [str(source), "--run", "r", "--dry-run", *options], env={"FLEET_STORE": None})


def first_request(folder: Path, *options: str, rows: str = ROW) -> dict[str, Any]:
    result = rehearsed(folder, "--json", *options, rows=rows)
    assert result.exit_code == 0, result.output
    request: dict[str, Any] = json.loads(result.stdout)["first_request"]["body"]
    return request


EVERY_OPTION = [
    *("--max-tokens", "5", "--temperature", "0.5", "--top-p", "0.9", "--top-k", "20", "--min-p", "0.1", "--seed", "-7"),
    *("--presence-penalty", "0.2", "--frequency-penalty", "-0.3", "--repetition-penalty", "1.1", "--stop", "x", "--stop", "y"),
    *("--thinking", "off", "--model", "m"),
]
EVERY_VALUE = {
    "max_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.1,
    "presence_penalty": 0.2,
    "frequency_penalty": -0.3,
    "repetition_penalty": 1.1,
    "stop": ["x", "y"],
    "seed": -7,
    "chat_template_kwargs": {"enable_thinking": False},
    "model": "m",
}


def test_every_option_reaches_the_request(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    body = first_request(tmp_path, *EVERY_OPTION, rows=json.dumps({"messages": messages}))
    assert body == {"messages": messages, **EVERY_VALUE}


def test_a_zero_is_a_value(tmp_path: Path) -> None:
    body = first_request(tmp_path, "--temperature", "0", "--min-p", "0", "--seed", "0")
    assert body["sampling_params"] == {"max_new_tokens": 2048, "temperature": 0.0, "min_p": 0.0, "sampling_seed": 0}


def test_options_override_the_file_and_a_row_overrides_both(tmp_path: Path) -> None:
    file = tmp_path / "sampling.toml"
    file.write_text('max_tokens = 9\ntemperature = 0.2\ntop_k = 3\nstop = ["a", "b"]\n')
    options = ["--sampling", str(file), "--temperature", "0.7", "--stop", "c"]
    assert first_request(tmp_path, *options, rows='{"text": "t", "top_k": 5}')["sampling_params"] == {
        "max_new_tokens": 9,
        "temperature": 0.7,
        "top_k": 5,
        "stop": ["c"],
    }


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            "word = 1",
            "word: expected one of max_tokens, temperature, top_p, top_k, min_p, presence_penalty, frequency_penalty, "
            "repetition_penalty, stop, seed, thinking",
        ),
        ('max_tokens = "many"', "max_tokens: expected a whole number, found text"),
        ('stop = "x"', "stop: expected a list, found text"),
        ("max_tokens", "Expected '=' after a key in a key/value pair (at end of document)"),
    ],
)
def test_a_sampling_file_with_a_mistake_is_exit_2_and_named(tmp_path: Path, content: str, sentence: str) -> None:
    file = tmp_path / "sampling.toml"
    file.write_text(content)
    result = rehearsed(tmp_path, "--sampling", str(file))
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == f"Error: {file}: {sentence}"


def test_a_sampling_file_that_is_not_there_or_not_text_is_exit_2(tmp_path: Path) -> None:
    result = rehearsed(tmp_path, "--sampling", str(tmp_path / "none"))
    assert (result.exit_code, "does not exist" in result.stderr) == (2, True)
    (tmp_path / "latin").write_bytes(b"stop = ['\xe9']")
    result = rehearsed(tmp_path, "--sampling", str(tmp_path / "latin"))
    assert (result.exit_code, "can't decode byte 0xe9" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--max-tokens", "0"], "max_tokens is 0, expected at least 1, below 2^31"),
        (["--max-tokens", str(1 << 70)], f"max_tokens is {1 << 70}, expected at least 1, below 2^31"),
        (["--temperature", "-1"], "temperature is -1.0, expected 0 or more, and finite"),
        (["--temperature", "inf"], "temperature is inf, expected 0 or more, and finite"),
        (["--temperature", "nan"], "temperature is nan, expected 0 or more, and finite"),
        (["--top-p", "0"], "top_p is 0.0, expected above 0 and at most 1"),
        (["--top-k", "0"], "top_k is 0, expected -1, or at least 1 and below 2^31"),
        (["--min-p", "2"], "min_p is 2.0, expected 0 to 1"),
        (["--presence-penalty", "3"], "presence_penalty is 3.0, expected -2 to 2"),
        (["--frequency-penalty", "-3"], "frequency_penalty is -3.0, expected -2 to 2"),
        (["--repetition-penalty", "nan"], "repetition_penalty is nan, expected above 0 and at most 2"),
        (["--stop", ""], "stop is [''], expected at most 64 strings, none empty"),
        (["--seed", str(1 << 63)], f"seed is {1 << 63}, expected an integer of 64 bits"),
        (["--seed", "x"], "Invalid value for '--seed': 'x' is not a valid integer."),
        (["--thinking", "maybe"], "Invalid value for '--thinking': 'maybe' is not one of 'on', 'off'."),
        (["--batch-size", "0"], "Invalid value for '--batch-size': 0 is not in the range 1<=x<=10000."),
        (["--samples", "1001"], "Invalid value for '--samples': 1001 is not in the range 1<=x<=1000."),
        (["--limit", "0"], "Invalid value for '--limit': 0 is not in the range x>=1."),
        (["--priority", "10"], "Invalid value for '--priority': 10 is not in the range 0<=x<=9."),
        (["--max-queued", "1"], "Invalid value for '--max-queued': 1 is not in the range x>=2."),
    ],
)
def test_a_wrong_option_is_exit_2_and_says_what_is_expected(tmp_path: Path, options: list[str], sentence: str) -> None:
    result = rehearsed(tmp_path, *options)
    assert result.exit_code == 2
    assert sentence in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "-x", "a b", "é", "a" * 65, "a{b}", "a\n", "a*"])
def test_a_name_that_cannot_stand_in_a_key_is_exit_2(tmp_path: Path, name: str) -> None:
    result = rehearsed(tmp_path, f"--run={name}")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == (
        "Error: Invalid value for '--run': expected up to 64 letters, digits, dots, dashes and underscores, "
        "beginning with a letter or digit"
    )


@pytest.mark.parametrize("name", ["a", "7", "my.run-1_b", "a" * 64])
def test_an_ordinary_name_is_accepted(tmp_path: Path, name: str) -> None:
    assert json.loads(rehearsed(tmp_path, "--json", "--run", name).stdout)["run"] == name


def test_a_dry_run_counts_what_an_enqueue_would_write(tmp_path: Path) -> None:
    rows = "".join(f'{{"id": {number}, "input_ids": [{number}]}}\n' for number in range(10)) + "rubbish\n{}\n"
    result = rehearsed(tmp_path, "--json", "--samples", "3", "--batch-size", "7", rows=rows)
    assert json.loads(result.stdout) == {
        "run": "r",
        "dry_run": True,
        "accepted": 10,
        "rejected": 2,
        "reasons": {"broken_json": 1, "no_prompt": 1},
        "ignored_fields": {},
        "batches": 5,
        "prompts": 30,
        "pushed": 0,
        "already_done": 0,
        "recognised": {"token ids": 10},
        "first_request": {"path": "/generate", "body": {"input_ids": [0], "sampling_params": {"max_new_tokens": 2048}}},
    }


def test_a_dry_run_for_people_shows_no_control_characters(tmp_path: Path) -> None:
    result = rehearsed(tmp_path, rows='{"text": "\\u001b[31m\\u202e"}\n{"text": "\x1b[31m"\n')
    assert result.exit_code == 0
    assert "recognised: 1 row of text; 1 rejected; 1 batch. Nothing was written." in result.stdout
    assert "line 2: broken_json (JSON is malformed: " in result.stdout
    assert all(char.isprintable() or char == "\n" for char in result.stdout)


def test_a_dry_run_without_any_row_or_with_strict_says_why(tmp_path: Path) -> None:
    source = tmp_path / "source.jsonl"
    nothing = rehearsed(tmp_path, rows="{}\n{}\n").exception
    assert isinstance(nothing, SourceUnreadable)
    assert str(nothing) == (
        f"{source}: no row could be accepted (2 rejected, the first: {source} line 1: no_prompt (it has no fields)); "
        "nothing was enqueued"
    )
    strict = rehearsed(tmp_path, "--strict", rows=ROW + "{}\n").exception
    assert isinstance(strict, RowRejected)
    assert str(strict) == (
        f"1 of 2 rows rejected, the first: {source} line 2: no_prompt (it has no fields); nothing was enqueued. "
        "Correct them, or leave out --strict"
    )


def test_a_misspelt_field_is_told_with_the_name_that_was_meant(tmp_path: Path) -> None:
    rows = '{"text": "t", "temprature": 0.5, "origin": "web"}\n{"text": "u", "temprature": 0.5}\n'
    result = rehearsed(tmp_path, rows=rows)
    assert "fields that change nothing: temprature in 2 rows (did you mean temperature?), origin in 1 row" in result.stdout
    assert json.loads(rehearsed(tmp_path, "--json", rows=rows).stdout)["ignored_fields"] == {"temprature": 2, "origin": 1}
