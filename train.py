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

from common.cli import run_command
from common.errors import FINISHED, STOPPED_BY_SIGNAL
from launch.pinning import RankContext
from launch.ranks import read_ranks
from launch.rendezvous import rank0_only_errors
from retinanet.config import Config
from retinanet.config_file import load_config, parse_run_arguments, print_config
from retinanet.placement import place_on_host, print_plan_here

if TYPE_CHECKING:
    from launch.process_group import ProcessGroup
    from retinanet.mlperf.log import MlperfLog
    from retinanet.training.signals import StopRequest
    from retinanet.training.trainer import Trainer


def main() -> int:
    """Run the command line; return the exit code."""
    ranks = read_ranks(os.environ)
    with rank0_only_errors(ranks):
        arguments = parse_run_arguments(__doc__ or "")
        config = load_config(arguments.config, arguments.overrides)
        if arguments.dry_run:
            print_config(config)
            print_plan_here(config, ranks)
            return FINISHED
        place = place_on_host(config, ranks, binding=not arguments.check)
    # torch is loaded only now: cores, memory policy and environment must be settled before.
    from launch.process_group import joined
    from retinanet.mlperf.training_log import running_log

    with joined(place, timeout_s=config.distributed.timeout_s) as group:
        if arguments.check:
            from retinanet.preflight.check import check

            return check(config, arguments, group=group, place=place)
        with running_log(config, group=group, local_rank=ranks.local_rank) as log:
            return train(config, arguments, group=group, place=place, log=log)


def train(
    config: Config,
    arguments: argparse.Namespace,
    *,
    group: "ProcessGroup",
    place: RankContext,
    log: "MlperfLog",
) -> int:
    """One run, from its inputs to its last words.

    Raises:
        InputError: Something the user gave does not fit; nothing was written.
    """
    from common.console import make_console
    from profiling.capture.hooks import capturing
    from retinanet.engine.engines import chosen_engine
    from retinanet.preflight.check import checked
    from retinanet.training.build import (
        build_model,
        build_optimizer,
        notes_on_backbone,
        starting_weights,
    )
    from retinanet.training.data import open_run_data
    from retinanet.training.distributed import seed_everything
    from retinanet.training.resume import checkpoint_to_resume, take_up, take_up_the_rest
    from retinanet.training.run_folder import claim_run_folder
    from retinanet.training.signals import StopRequest
    from retinanet.training.trainer import Trainer

    engine = chosen_engine(config.engine.name)
    group = checked(config, arguments, group=group, place=place, engine=engine)
    console = make_console(quiet=not group.is_first)
    path = config.run.root / config.run.name
    resume, auto_resume, overwrite = arguments.resume, arguments.auto_resume, arguments.overwrite
    with (
        StopRequest(starting=True, end_now=group.interrupt) as stop,
        claim_run_folder(
            path, resume=resume, auto_resume=auto_resume, overwrite=overwrite, group=group
        ) as folder,
        capturing(config, path, place=place, group=group, console=console) as phases,
    ):
        reads = (resume or auto_resume) and group.is_first  # the others get what rank 0 has read
        checkpoint = checkpoint_to_resume(folder, config, console=console) if reads else None
        seed_everything(config.run.seed)
        data = open_run_data(config, scenes_folder=folder.scenes, console=console, group=group)
        weights = starting_weights(config.model) if group.is_first and not checkpoint else None
        notes = notes_on_backbone(config.model.pretrained_backbone, weights)
        model = build_model(config.model, num_classes=data.classes.num_classes, weights=weights)
        del weights  # they would keep their file mapped for the whole run
        groups = config.distributed.groups
        optimizer = build_optimizer(config.training, model, engine=engine, groups=groups)
        run = Trainer(
            config,
            folder,
            data=data,
            model=model,
            optimizer=optimizer,
            console=console,
            place=place,
            group=group,
            phases=phases,
            log=log,
        )
        run.notes += notes
        if not take_up(run, checkpoint):
            return FINISHED
        run.prepare(engine, checkpoint)
        take_up_the_rest(run, checkpoint)
        stop.hold_back()
        group.barrier()  # from here on a signal to any rank leaves what can be resumed
        run.begin(resume=bool(checkpoint))
        return steps_and_evaluations(run, stop)


def steps_and_evaluations(run: "Trainer", stop: "StopRequest") -> int:
    """Train epoch by epoch, evaluate in between; end at the target, the last step, or a signal.

    Raises:
        InputError: An image cannot be read, and what was trained until then is in a checkpoint; or
            the last checkpoint cannot be written.
    """
    from retinanet.training.run_checkpoints import leaving_checkpoint

    run.agree_to_stop(stop)
    while True:
        with leaving_checkpoint(run):
            if run.evaluation_is_due():
                run.evaluate(stop)
            for _ in run.rest_of_epoch(stop):
                if stop:
                    break
        if stop:
            run.leave()
            run.say(f"{stop.name}: checkpoint written; go on with: {run.resuming_command}")
            return STOPPED_BY_SIGNAL
        if run.is_finished() and not run.evaluation_is_due():
            run.finish()
            return FINISHED


if __name__ == "__main__":
    sys.exit(run_command(main))
