"""Train RetinaNet-ResNeXt50 on CPUs: configuration → ranks → data → model → steps → evaluation.

python train.py                                          # drawn scenes, in minutes
python train.py --config coco.yaml data.root=/data/coco  # COCO 2017
python train.py --config coco.yaml --resume              # go on after an interruption
mpirun -np 8 python train.py --config openimages.yaml    # 8 ranks, each pins itself to its socket
"""

import argparse
import os
import sys
from typing import TYPE_CHECKING

from launch.group.one_voice import one_voice
from launch.place import Place
from launch.plan.command import print_plan_here
from launch.ranks import read_ranks
from retinanet.command_line import (
    parse_run_arguments,
    print_config,
    run_command,
)
from retinanet.config import Config, config_to_tree
from retinanet.config_file import load_config
from retinanet.configured_place import place_on_host
from retinanet.errors import InputError
from retinanet.exit_codes import FINISHED, STOPPED_BY_SIGNAL

if TYPE_CHECKING:
    from launch.group.process_group import ProcessGroup
    from retinanet.training.run import Run


def main() -> int:
    """Run the command line; return the exit code."""
    ranks = read_ranks(os.environ)
    with one_voice(ranks):
        arguments = parse_run_arguments(__doc__ or "")
        config = load_config(arguments.config, arguments.overrides)
        if arguments.dry_run:
            print_config(config)
            print_plan_here(config, ranks)
            return FINISHED
        place = place_on_host(config, ranks)
    # torch is loaded only now: cores, memory policy and environment must be settled before.
    from launch.group.process_group import joined

    with joined(place, timeout_s=config.distributed.timeout_s) as group:
        return train(config, arguments, group=group, place=place)


def train(
    config: Config, arguments: argparse.Namespace, *, group: "ProcessGroup", place: Place
) -> int:
    """One run, from its inputs to its last words.

    Raises:
        InputError: Something the user gave does not fit; nothing was written.
    """
    from profiling.capture.hooks import capturing
    from retinanet.engine.engines import chosen_engine
    from retinanet.progress import make_console
    from retinanet.training.agreement import in_turn
    from retinanet.training.checkpoint import read_checkpoint
    from retinanet.training.random_states import seed_everything
    from retinanet.training.resume import require_same_settings, resume_training
    from retinanet.training.run import Run
    from retinanet.training.run_data import open_run_data
    from retinanet.training.run_description import facts_of_ranks
    from retinanet.training.run_folder import claim_run_folder
    from retinanet.training.start import build_model, build_optimizer, starting_weights

    engine = chosen_engine(config.engine.name)
    console = make_console(quiet=not group.is_first)
    path = config.run.root / config.run.name
    resume, overwrite = arguments.resume, arguments.overwrite
    with (
        claim_run_folder(path, resume=resume, overwrite=overwrite, group=group) as folder,
        capturing(config, path, place=place, group=group, console=console) as phases,
    ):
        reads = resume and group.is_first  # the others get what rank 0 has read
        checkpoint = read_checkpoint(folder.checkpoints / "last") if reads else None
        if checkpoint:
            require_same_settings(checkpoint, config)
        seed_everything(config.run.seed)
        data = in_turn(
            group, lambda: open_run_data(config, scenes_folder=folder.scenes, console=console)
        )
        weights = None if resume or not group.is_first else starting_weights(config.model)
        model = build_model(config.model, num_classes=data.classes.num_classes, weights=weights)
        optimizer = build_optimizer(config.training, model, engine=engine)
        run = Run(
            config,
            folder,
            data=data,
            model=model,
            optimizer=optimizer,
            console=console,
            place=place,
            group=group,
            phases=phases,
        )
        if checkpoint:
            resume_training(run, checkpoint)
        run.prepare(engine)
        if group.is_first:
            folder.begin(config_to_tree(config), ranks=facts_of_ranks(run), resume=resume)
        run.begin()
        return steps_and_evaluations(run)


def steps_and_evaluations(run: "Run") -> int:
    """Train epoch by epoch, evaluate in between; end at the target, the last step, or a signal.

    Raises:
        InputError: An image cannot be read; what was trained until then is in a checkpoint.
    """
    from retinanet.training.signals import StopRequest

    with StopRequest() as stop:
        while True:
            try:
                if run.evaluation_is_due():
                    run.evaluate(stop)
                if stop:
                    run.save_checkpoint()
                    run.say(f"{stop.name}: checkpoint written; go on with: {run.resuming_command}")
                    return STOPPED_BY_SIGNAL
                if run.is_finished():
                    run.finish()
                    return FINISHED
                for _ in run.rest_of_epoch(stop):
                    if stop:
                        break
            except InputError as error:
                if run.step == 0:
                    raise
                run.save_checkpoint()
                raise InputError(f"{error}; then go on with: {run.resuming_command}") from error


if __name__ == "__main__":
    sys.exit(run_command(main))
