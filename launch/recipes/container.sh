#!/usr/bin/env bash
# OpenImages in containers under mpirun: one container per rank, on one host or several.
#
#   bash launch/recipes/container.sh                                     # 8 ranks on this host
#   HOSTS=hosts FIRST=node1 RANKS=16 bash launch/recipes/container.sh    # two hosts, 8 ranks each
#   ENGINE=podman IMAGE=registry/retinanet:1 bash launch/recipes/container.sh --config coco.yaml
#
# Needs: on each host docker or podman, the image, $DATA and $RUNS at the same paths; an mpirun
# outside the containers, any MPICH's or Intel MPI's, and `ssh HOST true` without a password.
# Prints: the output of rank 0.
#
# mpirun communicates with its ranks through an open file descriptor, which a container does not
# inherit. So the ranks get the variables of torchrun, and connect at $FIRST:$PORT instead. They use
# the host's network, process ids and shared memory; SYS_NICE permits memory near their cores.
set -euo pipefail

export ENGINE=${ENGINE:-docker} IMAGE=${IMAGE:-retinanet-cpu} RANKS=${RANKS:-8}
export DATA=${DATA:-/data/open-images-v6-mlperf} RUNS=${RUNS:-$PWD/runs}
export FIRST=${FIRST:-127.0.0.1} PORT=${PORT:-29500}
[ $# -gt 0 ] || set -- --config openimages.yaml
[ -z "${HOSTS:-}" ] || WHERE=(-f "$HOSTS")
mkdir -p "$RUNS"

# bash before 4.4 takes an empty array for an unset variable, which `set -u` forbids.
exec mpirun ${WHERE[@]+"${WHERE[@]}"} -np "$RANKS" bash -c '
    exec "$ENGINE" run --rm --network=host --ipc=host --pid=host --cap-add=SYS_NICE \
        -e RANK="$PMI_RANK" -e WORLD_SIZE="$RANKS" \
        -e LOCAL_RANK="$MPI_LOCALRANKID" -e LOCAL_WORLD_SIZE="$MPI_LOCALNRANKS" \
        -e MASTER_ADDR="$FIRST" -e MASTER_PORT="$PORT" \
        -v "$DATA:$DATA:ro" -v "$RUNS:$RUNS" \
        "$IMAGE" retinanet train "$@" data.root="$DATA" run.root="$RUNS"' rank "$@"
