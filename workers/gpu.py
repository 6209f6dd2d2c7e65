"""What NVML tells of the GPU of this worker's engine. On a machine without NVIDIA's driver there is nothing to tell."""

from typing import Any, Self

import msgspec
import pynvml


class GpuGauges(msgspec.Struct, frozen=True, omit_defaults=True):
    """One reading; what the GPU does not support is None. Utilization is a share of 0 to 1 of the time."""

    gpu_utilization: float | None = None
    gpu_power_w: float | None = None
    gpu_memory_used_bytes: int | None = None
    gpu_memory_total_bytes: int | None = None
    gpu_temperature_c: int | None = None


class Gpu:
    """One GPU, read through NVML. All calls block for a millisecond or so."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.name = str(pynvml.nvmlDeviceGetName(handle))

    @classmethod
    def find(cls, wanted: str | None) -> Self | None:
        """The GPU that a setting names.

        Args:
            wanted: An index or a UUID, or several with the engine's first one in front (CUDA_VISIBLE_DEVICES); None takes the
                only one there is.

        Returns:
            None without a driver, without a GPU, or if it is not known which of several it is.
        """
        try:
            pynvml.nvmlInit()
            count = pynvml.nvmlDeviceGetCount()
            first = (wanted or "").split(",")[0].strip()
            if first.isdigit():
                return cls(pynvml.nvmlDeviceGetHandleByIndex(int(first)))
            if first:
                return cls(pynvml.nvmlDeviceGetHandleByUUID(first))
            return cls(pynvml.nvmlDeviceGetHandleByIndex(0)) if count == 1 else None
        except pynvml.NVMLError:
            return None

    def read(self) -> GpuGauges:
        """One reading."""
        utilization = _asked(pynvml.nvmlDeviceGetUtilizationRates, self._handle)
        memory = _asked(pynvml.nvmlDeviceGetMemoryInfo, self._handle)
        power_mw = _asked(pynvml.nvmlDeviceGetPowerUsage, self._handle)
        return GpuGauges(
            gpu_utilization=None if utilization is None else utilization.gpu / 100,
            gpu_power_w=None if power_mw is None else power_mw / 1000,
            gpu_memory_used_bytes=None if memory is None else int(memory.used),
            gpu_memory_total_bytes=None if memory is None else int(memory.total),
            gpu_temperature_c=_asked(pynvml.nvmlDeviceGetTemperature, self._handle, pynvml.NVML_TEMPERATURE_GPU),
        )


def _asked(question: Any, *arguments: Any) -> Any:
    try:
        return question(*arguments)
    except pynvml.NVMLError:  # not supported by this GPU, or it fell off the bus
        return None
