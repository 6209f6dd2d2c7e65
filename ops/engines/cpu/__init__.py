"""The real SGLang on this machine's CPU, with small models: for the tests, and for `make run` where there is no GPU.

Two versions, each in an environment of its own under the cache. PyPI's `sgl_kernel` is CUDA only: `inside/stubs` stands in for
it: any name can be imported, calling one raises. For a dense model none is ever called, so what serves is SGLang's own code.
"""
