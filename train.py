"""Train RetinaNet-ResNeXt50 on CPUs: configuration → data → model → steps → evaluation → report.

python train.py                                          # drawn scenes, in minutes
python train.py --config coco.yaml data.root=/data/coco  # COCO 2017
python train.py --config coco.yaml --resume              # go on after an interruption
"""

import os
import sys
from typing import TYPE_CHECKING

from launch.cores import reserve_cores
from launch.memory import set_allocator
from launch.ranks import refuse_several_ranks
from retinanet.command_line import (
    parse_run_arguments,
    print_config,
    resuming_command,
    run_command,
)
from retinanet.config import Config, config_to_tree
from retinanet.config_file import load_config
from retinanet.errors import InputError
from retinanet.exit_codes import FINISHED, LOSS_NOT_FINITE, STOPPED_BY_SIGNAL

if TYPE_CHECKING:
    from retinanet.training.run import Run


def main() -> int:
    """Run the command line; return the exit code."""
    arguments = parse_run_arguments(__doc__ or "")
    config = load_config(arguments.config, arguments.overrides)
    if arguments.dry_run:
        print_config(config)
        return FINISHED
    refuse_several_ranks(os.environ)
    set_allocator(config.engine.allocator)
    loading_cores = reserve_cores(config.data.reserve_cores, field="data.reserve_cores")
    return train(
        config,
        resume=arguments.resume,
        overwrite=arguments.overwrite,
        loading_cores=loading_cores,
    )


def train(config: Config, *, resume: bool, overwrite: bool, loading_cores: tuple[int, ...]) -> int:
    """One run, from its inputs to its last words; images are loaded on `loading_cores`, if any.

    Raises:
        InputError: Something the user gave does not fit; nothing was written.
    """
    # torch is loaded only here: the memory policy and the cores must be settled before, and a
    # wrong configuration is told at once.
    from retinanet.engine.engines import chosen_engine
    from retinanet.progress import make_console
    from retinanet.training.checkpoint import read_checkpoint
    from retinanet.training.random_states import seed_everything
    from retinanet.training.resume import require_same_settings, resume_training
    from retinanet.training.run import Run
    from retinanet.training.run_data import open_run_data
    from retinanet.training.run_folder import claim_run_folder
    from retinanet.training.start import build_model, build_optimizer, starting_weights

    engine = chosen_engine(config.engine.name)
    console = make_console()
    path = config.run.root / config.run.name
    with claim_run_folder(path, resume=resume, overwrite=overwrite) as folder:
        checkpoint = read_checkpoint(folder.checkpoints / "last") if resume else None
        if checkpoint:
            require_same_settings(checkpoint, config)
        seed_everything(config.run.seed)
        data = open_run_data(config, scenes_folder=folder.scenes, console=console)
        weights = None if checkpoint else starting_weights(config.model)
        model = build_model(config.model, num_classes=data.classes.num_classes, weights=weights)
        optimizer = build_optimizer(config.training, model, engine=engine)
        run = Run(
            config,
            folder,
            data=data,
            model=model,
            optimizer=optimizer,
            console=console,
            loading_cores=loading_cores,
        )
        if checkpoint:
            resume_training(run, checkpoint)
        run.prepare(engine)
        folder.begin(config_to_tree(config), resume=resume)
        run.begin()
        return steps_and_evaluations(run)


def steps_and_evaluations(run: "Run") -> int:
    """Train epoch by epoch, evaluate in between; end at the target, the last step, or a signal.

    Raises:
        InputError: An image cannot be read; what was trained until then is in a checkpoint.
    """
    from retinanet.training.loop import NonFiniteLossError
    from retinanet.training.signals import StopRequest

    with StopRequest() as stop:
        while True:
            try:
                if run.evaluation_is_due():
                    run.evaluate(stop)
                if stop:
                    run.save_checkpoint()
                    print(f"{stop.name}: checkpoint written; go on with: {resuming_command()}")
                    return STOPPED_BY_SIGNAL
                if run.is_finished():
                    run.finish()
                    return FINISHED
                for _ in run.rest_of_epoch():
                    if stop:
                        break
            except InputError as error:
                if run.step == 0:
                    raise
                run.save_checkpoint()
                raise InputError(f"{error}; then go on with: {resuming_command()}") from error
            except NonFiniteLossError as error:
                print(f"error: {error}", file=sys.stderr)
                return LOSS_NOT_FINITE


if __name__ == "__main__":
    sys.exit(run_command(main))
