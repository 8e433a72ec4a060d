"""Tests of everything but the theorems and the comparison with the reference."""

HANGS = 600.0  # seconds after which a process that a test waits for is taken to hang
