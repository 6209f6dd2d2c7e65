"""The same rule for the submodule that 0.5.11 imports."""

from sgl_kernel import __getattr__  # noqa: F401
