"""The optimizer's state as named tensors, and back."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn
from torch.optim import Optimizer

from retinanet.engine.layout import laid_out_as
from retinanet.errors import InputError


def trainable_names(model: nn.Module) -> list[str]:
    """Names of the parameters that train, in the optimizer's order."""
    return [name for name, value in model.named_parameters() if value.requires_grad]


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer's state under the parameters' names: `backbone.fpn…weight/exp_avg`."""
    names = trainable_names(model)
    return {
        f"{names[index]}/{slot}": tensor
        for index, slots in optimizer.state_dict()["state"].items()
        for slot, tensor in slots.items()
    }


def optimizer_state(
    tensors: Mapping[str, Tensor], model: nn.Module, *, file: Path
) -> dict[int, dict[str, Tensor]]:
    """The inverse of `optimizer_tensors`: the slots of each parameter that trains, in their order.

    Raises:
        InputError: A parameter is not known or of another shape, or lacks a slot that others have.
    """
    parameters = dict(model.named_parameters())
    places = {name: index for index, name in enumerate(trainable_names(model))}
    state: dict[int, dict[str, Tensor]] = {index: {} for index in places.values()}
    for key, tensor in tensors.items():
        name, _, slot = key.rpartition("/")
        if name not in places:
            raise InputError(f"{file}: {name} does not train in the configured model")
        if tensor.dim() and tensor.shape != parameters[name].shape:
            raise InputError(f"{file}: {key} has the shape {list(tensor.shape)} of another model")
        state[places[name]][slot] = laid_out_as(parameters[name], tensor)
    # An optimizer would start anew, in silence, for a parameter that has none.
    slots = {slot for own in state.values() for slot in own}
    for name, index in places.items():
        for slot in sorted(slots - state[index].keys()):
            raise InputError(f"{file}: {name}/{slot} is missing; use another checkpoint")
    return state
