"""Every constant of the statistical tests, each with the sentence that explains it."""

from __future__ import annotations

ALPHA_RUN = 1e-9  # chance that a whole run of tests accuses a correct verifier, over all its cases
ALPHA_TEST = ALPHA_RUN / 100  # the same for one statistical test of `make test`: it has under 100
BETA = 1e-3  # chance that a case misses a bias of the size it promises to catch
SEQUENTIAL_COST = 1.15  # extra samples that pay for looking after every batch (STATS 3, simulated)
PIT_CELLS = 64  # equal cells for PIT values: fine enough for the two ends, where faults show
MIN_EXPECTED = 1000  # smallest expected count of a chi-square cell: its 1e-9 tail is wrong below
ROOT_SEED = 20_260_412  # where every stream of a test run starts; any other must pass as well

# Budgets of `univer certify`: the total variation that one registered prefix may add to the joint
# law before it is caught (BETA apart).
BUDGETS = {"smoke": 0.05, "pr": 0.01, "nightly": 0.005}

PILOT_CYCLES = 20_000  # cycles that find the prefixes to register; they are not counted again
PILOT_CYCLES_SLOW = 400  # the same for a verifier called one tree at a time
BATCH = 16_384  # trees a call: large enough that Python costs nothing, small enough for the cache
BATCH_SLOW = 256  # the same for a verifier called one tree at a time
TREES = 512  # trees a call of a stop law: deep ones have many rows
TREES_SLOW = 1_000  # trees in all for a stop law that is called one tree at a time
TREES_PER_DELTA = 400  # trees x TV to catch in L2: 8 000, 40 000, 80 000
WIDE_BATCH = 64  # trees a call over a real vocabulary, where they are small enough
WIDE_CALL = 2**21  # numbers in the target rows of one call there: what stays near the processor
WIDE_NUMBERS = 3e7  # / sqrt(TV to catch): numbers in all target rows of such a case, 3 s at smoke
WIDE_LEAST = 100  # cycles such a case takes in any case
SMALL_BATCH_COST = 0.8  # x TV to catch, its root is what a batch of few shows: .2, .09, .063
LANES = 64  # tokens that vector units and blocks of kernels take together, or a multiple of it
LAG_CYCLES = 2**17  # rows in which numbers used again are looked for at every distance
LAG_CYCLES_SLOW = 2**11  # the same for a verifier called one tree at a time
LEAST_PAIRS = 256  # pairs of rows that a distance must have to be judged
CELLS = 2**25  # numbers in the target rows of one call, 256 MB: fewer trees where they are large
PILOT_CALLS = 8  # calls of that size that a pilot makes at the most
MAX_PREFIXES = 64  # registered prefixes a case: log E pays log(2 x their number) for looking there

EXACT_ULPS = 256  # rounding of a stop law: sums and products over a tree, in its own precision
PROBE_TOLERANCE = 1e-6  # TV that exact probing lets pass: verifiers that work in float32 have 1e-7
PROBE_CALLS_SLOW = 30_000  # decisions for exact probing of a verifier called one tree at a time
LENGTH_TOLERANCE = 1e-6  # shortfall of an exact expected length that is still rounding
LENGTH_SIGMAS = 7.0  # standard errors of a sampled shortfall: 1e-12 for a normal mean
SHOWN_P_VALUE = 1e-4  # of a prefix, corrected for their number, before it is named as the place
DEFAULT_MINUTES = 30.0  # `univer certify` plans for this time unless told otherwise
DEFAULT_TIMEOUT = 60.0  # seconds that one call of a stranger's verifier may take
