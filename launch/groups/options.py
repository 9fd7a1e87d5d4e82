"""The command line of `python -m launch groups`."""

import argparse
from pathlib import Path
from typing import Any

from launch.start.where import add_where
from retinanet.command_line import add_overrides, positive

ABOUT = """\
Find how many compute groups (distributed.groups), how much momentum (training.beta1) and which
learning rate train soonest on these ranks.

Groups that do not wait for one another take more steps a second. But their gradients are late: that
acts as momentum, about 1 - 1/g of it with g groups, so that the optimizer's own has to be lowered,
and it needs a smaller learning rate to be stable. How far, and whether it pays at all, depends on
model, data and hosts. As Omnivore does, this command trains synchronously for a while (the cold
start), then from there for some seconds with each of several momenta and learning rates, beginning
with as many groups as there are ranks, and with half as many as long as no momentum at all is the
best. The lowest training loss at equal time is taken.

--whole then trains to the configuration's target: one group, the best groups that were found, these
from the cold start on, and the same with the optimizer's own momentum. Each takes the next larger
learning rate than its best probe's, as a short probe favours small ones. Everything goes to a
folder; the same command goes on there."""

EXAMPLES = """\
examples:
  python -m launch groups --np 2 --out runs/groups --whole                          # drawn scenes
  python -m launch groups --np 16 --hostfile hosts --out runs/groups --seconds 600 \\
      --config openimages.yaml training.warmup_epochs=0.001"""


def add_groups(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `groups` to the commands of a command line."""
    parser = commands.add_parser(
        "groups",
        help="probe how many compute groups, and how much momentum, train soonest",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--np", dest="ranks", type=several, required=True, metavar="N", help="ranks on all hosts"
    )
    add_where(parser, hosts_help="hosts, with ranks of each if not even: A:8,B:4")
    parser.add_argument(
        "--config", default="demo.yaml", metavar="NAME", help="as train.py's (default: demo.yaml)"
    )
    add_overrides(parser)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="of all runs, results and chart"
    )
    for name, default, what in (
        ("--seconds", 60, "seconds of steps of each probe"),
        ("--cold-start", 60, "seconds of synchronous steps before"),
    ):
        help_text = f"{what} (default: {default})"
        parser.add_argument(name, type=positive, default=default, metavar="S", help=help_text)
    parser.add_argument(
        "--whole", action="store_true", help="also train to the target, with and without"
    )
    parser.set_defaults(run=run)


def several(text: str) -> int:
    """A whole number above 1."""
    found = positive(text)
    if found == 1:
        raise argparse.ArgumentTypeError("one rank makes no groups: expected 2 or more")
    return found


def run(**chosen: Any) -> int:
    """`groups_command`, loaded where it runs."""
    from launch.groups.command import groups_command  # noqa: PLC0415

    return groups_command(**chosen)
