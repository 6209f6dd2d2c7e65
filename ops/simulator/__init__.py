"""A simulated SGLang server: the API of 0.5.11 and 0.5.23 as recorded, continuous batching, faults on demand. No model, no GPU.

For rehearsal, load and tests. `tests/conformance` holds it to the recordings and to the real server alike. What it generates is
words without meaning, and everything that it prints says that it is simulated.
"""
