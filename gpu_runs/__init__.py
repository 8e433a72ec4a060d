"""Runs on real language models: loading them, and the demonstration."""

import os

# By default idle OpenMP threads spin; next to any other busy process a forward then takes ten
# times longer. Sleeping costs a third on an idle machine. Only has an effect before torch loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
