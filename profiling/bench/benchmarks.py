"""All benchmarks."""

from profiling.bench.evaluate_benchmark import EVALUATE
from profiling.bench.loss_benchmark import LOSS
from profiling.bench.optimizer_benchmark import OPTIMIZER
from profiling.bench.step_benchmark import STEP

BENCHMARKS = (STEP, LOSS, OPTIMIZER, EVALUATE)
