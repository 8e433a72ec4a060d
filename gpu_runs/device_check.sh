#!/bin/sh
# A CUDA device against the CPU, in under 10 minutes; nothing is downloaded.
#
#   sh gpu_runs/device_check.sh [results.json]
#
# PYTHON names the interpreter (default: .venv/bin/python if it is there, else python3). It needs
# torch with CUDA (and its Triton), transformers, and what the tests need (the extras llm and test).
# Exit code 0: all passed. 1: something did not. 3: there is no CUDA device.
set -u
cd "$(dirname "$0")/.." || exit 1
results=$(realpath -m "${1:-device_check.json}") || exit 1
if [ -z "${PYTHON:-}" ]; then
    PYTHON=python3
    [ -x .venv/bin/python ] && PYTHON=.venv/bin/python
fi

"$PYTHON" -c 'import torch, transformers, pytest, hypothesis, rich' || {
    echo "device check: $PYTHON lacks the package named above; nothing was checked."
    exit 1
}
"$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || {
    echo "device check: no CUDA device; nothing was checked."
    exit 3
}

failed=0
timeout 150 "$PYTHON" -m pytest -q -m cuda -p no:cacheprovider || failed=1
timeout 150 "$PYTHON" -m pytest -q -p no:cacheprovider stattests/behaviour/test_kernels.py || failed=1
timeout 290 "$PYTHON" -m gpu_runs.device_check --device cuda --json "$results" || failed=1
if [ "$failed" -ne 0 ]; then
    echo "device check: something FAILED, see above."
    exit 1
fi
echo "device check: all passed; the numbers are in $results."
