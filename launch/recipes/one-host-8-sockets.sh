#!/usr/bin/env bash
# OpenImages on one host with 8 sockets: 8 ranks, each pins itself to a socket of its own.
#
#   bash launch/recipes/one-host-8-sockets.sh
#   DATA=/data/coco bash launch/recipes/one-host-8-sockets.sh --config coco.yaml run.name=eight
#
# Needs: `make` (it creates .venv with an mpirun), and the data set in $DATA.
# Prints: the cores of each rank, then the output of rank 0: progress and mAP.
# training.batch_size is that of a rank: the global batch is 8 times as large.
set -euo pipefail
cd "$(dirname "$0")/../.."

RANKS=${RANKS:-8}
DATA=${DATA:-/data/open-images-v6-mlperf}
[ $# -gt 0 ] || set -- --config openimages.yaml

.venv/bin/retinanet launch plan --np "$RANKS" || true # for the settings of a run without arguments
exec .venv/bin/mpirun -np "$RANKS" .venv/bin/retinanet train "$@" data.root="$DATA"
