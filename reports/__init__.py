"""Figures, tables and one HTML page from the files that runs leave behind.

`python -m reports <run folders> -o <folder>` reads rows, theorem reports and gate reports and runs
no model. Of the other rooms it uses one formula, the e-test of `stattests.etest`: a second copy
could disagree with the one that is calibrated.
"""
