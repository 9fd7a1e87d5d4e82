"""The paper's form of the focal loss with the backward pass that autograd derives by itself.

The paper compares it with the explicit one: "implicit autograd can be generated".
"""

from torch import Tensor

from retinanet.loss.focal_paper import focal_product, paper_terms
from retinanet.loss.focal_reference import at_least_float32, one_hot_targets, weigh
from retinanet.model.matching import IGNORED


def paper_implicit_form(
    logits: Tensor,
    classes: Tensor,
    image_weights: Tensor,
    *,
    alpha: float,
    gamma: float,
    reduce: bool,
) -> Tensor:
    """One level's loss by equation (3) of `focal_paper`, differentiated by autograd."""
    ignored = (classes == IGNORED).unsqueeze(-1)
    x = at_least_float32(logits).masked_fill(ignored, 0.0)
    y = one_hot_targets(x, classes)
    m, cross_entropy = paper_terms(x, y)
    loss = focal_product(m, cross_entropy, y, alpha=alpha, gamma=gamma)
    return weigh(loss.masked_fill_(ignored, 0.0), image_weights, reduce=reduce)
