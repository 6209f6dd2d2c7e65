"""An order under the name of a run that exists: the first field that differs is named, with both values."""

from typing import Any

import msgspec
import pytest

from producer.enqueue import Order, compare
from workers.contract.errors import RunDiffers
from workers.contract.schema import Manifest, Sampling

SAMPLING = Sampling(max_tokens=64, temperature=0.5)
MANIFEST = Manifest(
    run="r",
    created_at=0.0,
    sources=("f",),
    source_sha256="",
    source_bytes=0,
    accepted=1,
    rejected=0,
    reject_reasons={},
    prompts=1,
    batches=1,
    batch_size=64,
    samples=1,
    sampling=SAMPLING,
    shard_digests="",
)


def test_the_same_order_is_let_through() -> None:
    compare(Order("r", ("f",), SAMPLING), MANIFEST)


@pytest.mark.parametrize(
    ("changes", "field", "found", "expected"),
    [
        ({"max_tokens": 9}, "max_tokens", "9", "64"),
        ({"temperature": None}, "temperature", "nothing", "0.5"),
        ({"stop": ("x",)}, "stop", "['x']", "nothing"),
        ({"thinking": False}, "thinking", "False", "nothing"),
        ({"seed": 7}, "seed", "7", "nothing"),
    ],
)
def test_other_sampling_is_refused_by_its_field(changes: dict[str, Any], field: str, found: str, expected: str) -> None:
    with pytest.raises(RunDiffers) as caught:
        compare(Order("r", ("f",), msgspec.structs.replace(SAMPLING, **changes)), MANIFEST)
    assert str(caught.value) == (
        f"run r exists with another {field}: this command says {found}, the run has {expected}; "
        f"use another --run, or the same {field}"
    )


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [("model", "m", "nothing"), ("batch_size", 7, "64"), ("samples", 2, "1"), ("limit", 5, "nothing"), ("priority", 9, "4")],
)
def test_another_shape_is_refused_by_its_field(field: str, value: object, expected: str) -> None:
    order: dict[str, Any] = {field: value}
    with pytest.raises(RunDiffers, match=f"another {field}: this command says {value}, the run has {expected}"):
        compare(Order("r", ("f",), SAMPLING, **order), MANIFEST)
