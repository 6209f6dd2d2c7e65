"""What is told of a GPU: everything that NVML knows, nothing where there is none. No GPU is here; NVML's own errors are."""

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from workers.gpu import Gpu, GpuGauges


def test_without_a_driver_there_is_no_gpu() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        assert Gpu.find(None) is None
        assert Gpu.find("0") is None
    else:
        assert Gpu.find("0") is not None


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver with two GPUs, of which the first does not tell its power."""

    def power(handle: Any) -> int:
        if handle == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 350_500

    def by_uuid(uuid: str) -> int:
        if uuid != "GPU-1":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return 1

    answers = {
        "Init": lambda: None,
        "DeviceGetCount": lambda: 2,
        "DeviceGetName": lambda handle: f"H200 number {handle}",
        "DeviceGetHandleByIndex": lambda index: index,
        "DeviceGetHandleByUUID": by_uuid,
        "DeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=97),
        "DeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=100, total=144),
        "DeviceGetPowerUsage": power,
        "DeviceGetTemperature": lambda handle, kind: 61,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, f"nvml{name}", answer)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(("wanted", "name"), [("1", "H200 number 1"), ("GPU-1", "H200 number 1"), ("0,1", "H200 number 0")])
def test_the_gpu_is_found_by_index_uuid_or_the_first_of_the_visible_ones(wanted: str, name: str) -> None:
    found = Gpu.find(wanted)
    assert found is not None
    assert found.name == name


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("wanted", [None, "", "GPU-9"])
def test_one_of_several_is_not_guessed(wanted: str | None) -> None:
    assert Gpu.find(wanted) is None


@pytest.mark.usefixtures("two_gpus")
def test_what_a_gpu_does_not_support_is_absent_and_not_zero() -> None:
    first, second = Gpu.find("0"), Gpu.find("1")
    assert first is not None
    assert second is not None
    assert second.read() == GpuGauges(0.97, 350.5, 100, 144, 61)
    assert first.read() == GpuGauges(0.97, None, 100, 144, 61)
