"""Tests of everything but the theorems and the comparison with the reference."""
