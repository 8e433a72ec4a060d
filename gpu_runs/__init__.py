"""Runs on real language models: loading them, and the demonstration."""

import os

# By default idle OpenMP threads spin, and every other busy process then slows a forward out of all
# proportion; asleep, they cost a little on an idle machine. Only has an effect before torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
