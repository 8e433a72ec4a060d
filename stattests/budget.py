"""Every constant of the statistical tests, each with the sentence that explains it."""

ALPHA_RUN = 1e-9  # chance that a whole run of tests accuses a correct verifier, over all its cases
BETA = 1e-3  # chance that a case misses a bias of the size it promises to catch
SEQUENTIAL_COST = 1.15  # extra samples that pay for looking after every batch (STATS 3, simulated)
PIT_CELLS = 64  # equal cells for PIT values: fine enough for the two ends, where faults show
MIN_EXPECTED = 1000  # smallest expected count of a chi-square cell: its 1e-9 tail is wrong below
ROOT_SEED = 20_260_412  # where every stream of a test run starts; any other must pass as well
