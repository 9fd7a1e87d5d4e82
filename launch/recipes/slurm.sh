#!/usr/bin/env bash
# What the job scripts for Slurm share: whether the time limit leaves time to train, and the end.
#
#   . launch/recipes/slurm.sh                                  # a script sources it
#   MARGIN=60 sbatch --signal=USR1@60 --time=15 launch/recipes/slurm.sbatch    # a short job
#
# Needs: MARGIN, the seconds of the option --signal, if they are not the 600 of the scripts.
# Prints: a line that refuses a job whose limit leaves no time before the signal of that margin: its
# run would be stopped in its start, or at the same step after each restart.
MARGIN=${MARGIN:-600}

require_time() {
    local end left
    end=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e)
    # A job without a limit has no date. Slurm may send the signal a minute early.
    end=$(date --date="${end:-NONE}" +%s 2>/dev/null) || return 0
    left=$((end - $(date +%s)))
    [ "$left" -le $((MARGIN + 120)) ] || return 0
    echo "error: --time leaves this job $left s, and SIGUSR1 comes $MARGIN s before its end: use" \
        "--time=60 or more, or MARGIN=60 sbatch --signal=USR1@60 (B:USR1@60 for 16-hosts.sbatch)" >&2
    exit 2
}

# Status 75: a checkpoint with new steps was written. Any other ends the job, 5 too: the run was
# stopped before it had made a step.
end_job() {
    [ "$1" != 75 ] || exec scontrol requeue "$SLURM_JOB_ID"
    exit "$1"
}
