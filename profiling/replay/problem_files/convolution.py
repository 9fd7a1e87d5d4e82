"""Convolutions and deconvolutions: benchdnn's drivers `conv` and `deconv`."""

from profiling.onednn_log.problem import Problem
from profiling.replay.problem_files.attributes import attribute_options
from profiling.replay.problem_files.data_types import triple_option
from profiling.replay.problem_files.fields import algorithm_of, direction_of, require_sizes, tensor
from profiling.replay.problem_files.layouts import layout_options
from profiling.replay.problem_files.problem_line import Dialect, ProblemLine

ALGORITHMS = {"direct": "DIRECT", "winograd": "WINO", "auto": "AUTO"}
WITH_BIAS = {"FWD_D": "FWD_B", "FWD_I": "FWD_B", "BWD_W": "BWD_WB"}
INFERENCE_WITH_BIAS = "inference with a bias is run as training's forward pass"


def convolution_line(problem: Problem, dialect: Dialect) -> ProblemLine:
    """A convolution, forward or back, with or without groups.

    Raises:
        NotExpressibleError: benchdnn has no words for it.
    """
    source, weights = tensor(problem, "src", "diff_src"), tensor(problem, "wei", "diff_wei")
    # A depthwise convolution that follows in one primitive hides this one's own result.
    destination = tensor(problem, "src_fused", "dst", "diff_dst")
    direction, notes = direction_with_bias(problem)
    name = algorithm_of(problem, prefix=f"{problem.kind}_")
    options = [
        f"--dir={direction}",
        triple_option(source.type, weights.type, destination.type, dialect),
        *layout_options(
            (source, weights, destination),
            ("stag", "wtag", "dtag"),
            dialect,
            takes_strides=problem.kind == "convolution" and dialect.major != 2,
        ),
        f"--alg={ALGORITHMS.get(name, name)}",
        *attribute_options(problem, dialect),
    ]
    driver = "conv" if problem.kind == "convolution" else "deconv"
    return ProblemLine(driver, tuple(options), require_sizes(problem), tuple(notes))


def direction_with_bias(problem: Problem) -> tuple[str, list[str]]:
    """benchdnn's direction, which says whether there is a bias, and what it does not say.

    Raises:
        NotExpressibleError: There is none.
    """
    direction = direction_of(problem)
    bias = problem.memory("bia") or problem.memory("diff_bia")
    if bias is None or direction not in WITH_BIAS:
        return direction, []
    notes = [INFERENCE_WITH_BIAS] if direction == "FWD_I" else []
    weights = problem.memory("wei")
    if weights is not None and weights.type[:1] in "bf" and bias.type != weights.type:
        notes.append(f"the bias is {weights.type}, as the weights, and {bias.type} in the log")
    return WITH_BIAS[direction], notes
