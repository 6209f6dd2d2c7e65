"""Stands in for `sgl_kernel`, which exists for CUDA only: any name can be imported, calling one raises."""

from collections.abc import Callable
from typing import NoReturn

__version__ = "0.4.10"


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: object, **__: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} has no CPU build here")

    missing.__name__ = name
    return missing
