"""Rehearse faults: a fleet on simulated engines whose parts are killed and cut off, and what that cost."""
