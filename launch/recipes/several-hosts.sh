#!/usr/bin/env bash
# OpenImages on several hosts of a cluster without a batch system.
#
#   cp launch/recipes/hosts.example hosts      # and edit it
#   bash launch/recipes/several-hosts.sh
#   HOSTS=mine DATA=/data/coco bash launch/recipes/several-hosts.sh --config coco.yaml
#
# Needs: this folder, .venv included, and $DATA at the same paths on all hosts (a network drive, or
# copies), and `ssh HOST true` without a password. runs/ must be shared, or rank 0's host has it.
# Prints: the output of rank 0, which runs on the first host.
#
# If a host has several networks, set the one for gradients before the command (UCX_NET_DEVICES=…; with
# distributed.backend=gloo GLOO_SOCKET_IFNAME=ib0) and the one for mpirun itself (HYDRA_IFACE=ib0).
# They are passed to all hosts.
set -euo pipefail
cd "$(dirname "$0")/../.."

HOSTS=${HOSTS:-hosts}
DATA=${DATA:-/data/open-images-v6-mlperf}
[ $# -gt 0 ] || set -- --config openimages.yaml
[ -r "$HOSTS" ] || { echo "no file $HOSTS: copy launch/recipes/hosts.example and edit it" >&2; exit 2; }
# A line without a number is one rank, as for MPICH.
RANKS=$(sed 's/[[:space:]]*#.*//; /^[[:space:]]*$/d' "$HOSTS" | awk -F: '{ ranks += (NF > 1 ? $2 : 1) } END { print ranks }')

exec .venv/bin/mpirun -f "$HOSTS" -np "$RANKS" .venv/bin/retinanet train "$@" data.root="$DATA"
