"""Figures, each a ratio in one run against a bare loop on the same machine: `make bench`."""
