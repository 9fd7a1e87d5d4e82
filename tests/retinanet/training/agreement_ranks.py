"""Program of two ranks that print JSON lines; `test_agreement.py` runs it under mpirun."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from tests.support.rank_programs import enter_test_rank

if __name__ == "__main__":
    place = enter_test_rank()
    import torch
    from torch import nn
    from torch.optim import Adam

    from common.errors import InputError
    from data.dataset import Batch
    from launch.process_group import joined
    from retinanet.config_file import load_config
    from retinanet.training.agreement import (
        agree_on_weights,
        agreed_batches,
        average_norms,
        in_turn,
        require_equal_data,
        require_equal_settings,
        share_weights,
    )
    from retinanet.training.train_state import trained_norms
    from tests.retinanet.report.samples import CAT, split

    with joined(place, timeout_s=60) as group:
        value = float(group.rank + 1)
        results: dict[str, object] = {}

        convolution, norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)
        model = nn.Sequential(convolution, norm)
        model = model.to(memory_format=torch.channels_last)
        for parameter in model.parameters():
            nn.init.constant_(parameter, value)
        optimizer = Adam(model.parameters(), lr=0.0)
        if group.is_first:  # as if it had read a checkpoint
            torch.stack([weight.sum() for weight in model.parameters()]).sum().backward()
            optimizer.step()
        share_weights(group, model, optimizer)
        results["weights"] = sorted(set(convolution.weight.flatten().tolist()))
        results["optimizer steps"] = [float(state["step"]) for state in optimizer.state.values()]

        results["equal"] = agree_on_weights(group, model)
        if not group.is_first:
            convolution.weight.data[3, 1, 2, 2] += 2**-20
        results["equal after a flipped bit"] = agree_on_weights(group, model)
        results["equal again"] = agree_on_weights(group, model)

        assert norm.running_mean is not None
        norm.running_mean.fill_(value)
        average_norms(group, trained_norms(model))
        results["mean"] = norm.running_mean.tolist()

        def make() -> tuple[float, float]:
            begin = time.monotonic()
            time.sleep(0.2)
            return begin, time.monotonic()

        times = in_turn(group, make)
        returned = time.monotonic()
        (_, first_end), (second_begin, second_end) = group.all_gather(times, tuple[float, float])
        results["first before second"] = first_end <= second_begin
        results["returned after both"] = returned >= second_end

        def batches() -> Iterator[Batch]:
            yield Batch(torch.zeros(0), [], [1], [])
            if group.rank == 1:
                raise InputError("second.jpg: damaged")
            yield Batch(torch.zeros(0), [], [2], [])

        ids = []
        try:
            for batch in agreed_batches(group, batches()):
                ids += batch.image_ids
        except InputError as error:
            results["error"] = str(error)
        results["batches"] = ids

        def refusal(check: Callable[[], None]) -> str:
            try:
                check()
            except InputError as error:
                return str(error)
            return ""

        # What each host has of its own: where files are, and what fits its cores.
        own = [f"run.root=runs{group.rank}", f"launch.threads={group.rank + 1}"]
        other = [f"training.learning_rate={value}e-3"]
        for name, settings in (("own settings", own), ("settings", [*own, *other])):
            config = load_config("demo.yaml", settings)
            results[name] = refusal(partial(require_equal_settings, group, config))
        found = split([(CAT, (0, 0, 10, 10))])
        moved = replace(found, boxes=found.boxes + group.rank)
        crowd = replace(found, box_is_crowd=found.box_is_crowd | bool(group.rank))
        renamed = replace(found, category_names=[f"{n} {group.rank}" for n in found.category_names])
        contents = {"same data": found, "data": moved, "crowd": crowd, "renamed": renamed}
        for name, content in contents.items():
            splits = {"training": found, "validation": content}
            results[name] = refusal(partial(require_equal_data, group, splits))
        sys.stdout.write(json.dumps({"rank": group.rank, **results}) + "\n")
