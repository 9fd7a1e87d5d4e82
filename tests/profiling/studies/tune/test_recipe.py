"""The winner as commands."""

import subprocess
from pathlib import Path

from profiling.studies.tune.command import launch_command, slurm_script, training_arguments
from tests.profiling.studies.tune.test_choice import asked

FOUND = asked().winner
WORDS = training_arguments(
    FOUND, config="openimages.yaml", settings=["training.learning_rate=0.0001"]
)


def test_command_starts_the_ranks_of_all_hosts_with_the_chosen_batch() -> None:
    command = launch_command(FOUND, WORDS)
    shape = FOUND.allocation.on_host
    assert f"--np {FOUND.allocation.ranks} --hostfile hosts -- train.py" in command
    assert f"training.batch_size={shape.batch_size}" in command
    assert f"launch.threads={shape.threads}" in command


def test_slurm_file_asks_for_the_allocation_and_is_a_script(tmp_path: Path) -> None:
    text = slurm_script(FOUND, WORDS)
    assert f"\n#SBATCH --nodes={FOUND.allocation.hosts}\n" in text
    assert f"\n#SBATCH --ntasks-per-node={FOUND.allocation.on_host.ranks}\n" in text
    assert f"set -- {' '.join(WORDS)}\n" in text
    script = tmp_path / "job.sbatch"
    script.write_text(text)
    subprocess.run(["bash", "-n", script], check=True)
