#!/usr/bin/env bash
# OpenImages on 16 hosts of 2 × 56 cores, gradients by the cluster's MPI: 64 ranks of 28 cores.
#
#   cp launch/recipes/hosts.example hosts                    # and edit it: 16 lines `node1:4`
#   bash launch/recipes/16-hosts.sh
#   RANKS=32 HOSTS=mine bash launch/recipes/16-hosts.sh training.batch_size=8
#   sbatch launch/recipes/16-hosts.sbatch                    # a job of Slurm, which starts this script
#   qsub launch/recipes/16-hosts.pbs                         # a job of PBS
#
# Needs: this folder with .venv, $DATA and runs/ at the same paths on all hosts; the cluster's mpirun
# on PATH (module load …), else that of .venv; outside of a job `ssh HOST true` without a password.
# Prints: the command of mpirun, then the output of rank 0; the line `ranks` names how gradients go.
#
# The numbers are those of Intel's MLPerf v3.0 submission: 4 ranks a host, 4 images each, 256 a step.
# Gradients go by the MPI library of the mpirun, which chooses the network. To choose it yourself, set
# variables before the command; those of libfabric (FI_, PSM3_), UCX (UCX_), Intel MPI (I_MPI_) and
# gloo (GLOO_) reach all ranks:
#
#   Intel's E810 by PSM3        FI_PROVIDER=psm3            with Intel MPI up to 2021.18: each rank takes
#                               a near card; from 2021.19 with libfabric's own, see docs/ranks.md
#   InfiniBand by UCX           UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1
#   gloo in place of MPI        GLOO_SOCKET_IFNAME=ens1f0,ens2f0, and the argument
#                               distributed.backend=gloo
set -euo pipefail
cd "$(dirname "$0")/../.."

RANKS=${RANKS:-64}
DATA=${DATA:-/data/open-images-v6-mlperf}
# In a job of Slurm or PBS mpirun starts ranks on the hosts of the job.
if [ -z "${SLURM_JOB_ID:-}${PBS_JOBID:-}" ]; then
    HOSTS=${HOSTS:-hosts}
    [ -r "$HOSTS" ] || { echo "no file $HOSTS: copy launch/recipes/hosts.example and edit it" >&2; exit 2; }
    WHERE=(--hostfile "$HOSTS")
fi

# Two cores of each rank exchange gradients while the others compute the backward pass.
exec .venv/bin/retinanet launch run --np "$RANKS" ${WHERE[@]+"${WHERE[@]}"} -- \
    retinanet train --config openimages.yaml data.root="$DATA" training.batch_size=4 \
    launch.comm_cores=2 distributed.compress=bf16 "$@"
