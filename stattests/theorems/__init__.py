"""The paper's theorems, each in one file, in exact fractions."""
