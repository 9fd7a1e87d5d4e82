#!/usr/bin/env bash
# Test that the image builds and runs with nothing but Debian and the package registries: debootstrap
# creates a minimal Debian as the base image; Podman builds the Dockerfile from it, and containers
# train: the demo, several ranks, as any user, on a read-only root, as pods.
#
#   apt-get install debootstrap podman openssh-client      # as root, on Debian or Ubuntu; with the
#                                                          # packages that podman recommends
#   bash launch/image/try_it.sh                            # or: ... --build-arg SERVING=1
#
# Settings, from the environment:
#   BASE        a base image that is there already (default: one is made)
#   IMAGE       a name for the image (default: retinanet-cpu)
#   RUN_WITH    more options of `podman run` and `podman build`, such as --ulimit nofile=1024:1024
# The certificates and pip settings of this machine are mounted during the build, and are not part of
# the image. Takes a quarter of an hour on 2 cores.
set -euo pipefail
cd "$(dirname "$0")/../.."

IMAGE=${IMAGE:-retinanet-cpu}
read -ra more <<<"${RUN_WITH:-}"
scratch=$(mktemp -d)
# mktemp makes a folder for this user only, but containers run as other users.
chmod 755 "$scratch"
short=(--config demo.yaml 'data.scenes={train: 16, validation: 4}' training.epochs=1)

clean_up() {
    podman rm -f -i -t 5 try-worker-0 try-worker-1 try-training >/dev/null 2>&1 || true
    podman network rm -f retinanet-try >/dev/null 2>&1 || true
    rm -rf "$scratch"
}
trap clean_up EXIT

step() {
    printf '\n== %s (after %s s)\n' "$1" "$SECONDS"
}

make_base() {
    BASE=localhost/debian:bookworm-slim
    step "a bare Debian, by debootstrap"
    debootstrap --variant=minbase --include=ca-certificates bookworm "$scratch/root" >"$scratch/log" || {
        tail -n 20 "$scratch/log" >&2
        exit 1
    }
    rm -rf "$scratch"/root/var/lib/apt/lists/* "$scratch"/root/var/cache/apt/*
    tar -C "$scratch/root" -c . | podman import --quiet - "$BASE"
    rm -rf "$scratch/root"
}

build() {
    local file lent=()
    for file in /etc/ssl/certs/ca-certificates.crt /etc/pip.conf; do
        [ ! -e "$file" ] || lent+=(--volume "$file:$file:ro")
    done
    step "the image, from the Dockerfile"
    # Docker's format, as OCI's own has no HEALTHCHECK.
    podman build --format docker --network host --build-arg BASE="$BASE" \
        --build-arg COMMIT="$(git rev-parse HEAD 2>/dev/null || echo unknown)" \
        --build-arg VERSION="$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)" \
        "${lent[@]}" "${more[@]}" "$@" -t "$IMAGE" .
    podman image inspect --format 'size {{.Size}} bytes, user {{.Config.User}}, of commit {{.Config.Labels}}' "$IMAGE"
}

run() { # NAME OPTION... -- COMMAND...
    step "$1"
    shift
    local options=()
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    shift
    podman run --rm "${options[@]}" "${more[@]}" "$IMAGE" "$@"
}

keep_runs() { # NAME: an empty folder for this container's runs
    mkdir -m 1777 "$scratch/$1"
    volume=(-v "$scratch/$1:/app/runs")
}

any_user() {
    keep_runs users
    run "as any user, on a read-only root" --read-only --tmpfs /tmp --user 12345:0 "${volume[@]}" -- \
        retinanet train "${short[@]}"
    ls -ln "$scratch/users"
}

ranks() {
    keep_runs without
    run "two ranks, nothing permitted" "${volume[@]}" -- \
        mpirun -np 2 retinanet train "${short[@]}" training.max_steps=2
    keep_runs with
    run "two ranks, memory binding permitted" --cap-add SYS_NICE --ipc host "${volume[@]}" -- mpirun -np 2 retinanet train "${short[@]}" training.max_steps=2
}

stop_it() {
    step "a suspended training, and its health check"
    keep_runs stopped
    podman run -d --name try-training "${volume[@]}" "${more[@]}" "$IMAGE" >/dev/null
    until grep -qs '"step": 3' "$scratch/stopped/demo/metrics.jsonl"; do sleep 1; done
    podman exec try-training python -m launch.image.health && echo "healthy"
    podman exec try-training pkill -STOP -f 'retinanet train'
    podman exec try-training python -m launch.image.health || echo "unhealthy"
    podman exec try-training pkill -CONT -f 'retinanet train'
    podman stop -t 60 try-training >/dev/null
    echo "exit status $(podman inspect --format '{{.State.ExitCode}}' try-training)"
    podman logs --tail 3 try-training
}

two_pods() {
    step "two containers with networks of their own, as pods: sshd, and mpirun from a third"
    keep_runs pods
    # Like Kubernetes' MPI operator: one key for the job, in files of the pod's group.
    mkdir "$scratch/ssh"
    ssh-keygen -q -t ecdsa -N '' -C job -f "$scratch/ssh/id_rsa"
    cp "$scratch/ssh/id_rsa.pub" "$scratch/ssh/authorized_keys"
    chown -R 1000:1000 "$scratch/ssh"
    printf 'try-worker-0:1\ntry-worker-1:1\n' >"$scratch/hostfile"
    podman network create retinanet-try >/dev/null
    local worker
    for worker in try-worker-0 try-worker-1; do
        podman run --rm -d --name "$worker" --hostname "$worker" --network retinanet-try \
            -v "$scratch/ssh:/home/retinanet/.ssh:ro" "${volume[@]}" "${more[@]}" \
            --entrypoint /usr/sbin/sshd "$IMAGE" -De -f launch/image/sshd_config >/dev/null
    done
    run "the launcher" --network retinanet-try -v "$scratch/ssh:/home/retinanet/.ssh:ro" \
        -v "$scratch/hostfile:/etc/mpi/hostfile:ro" -e HYDRA_HOST_FILE=/etc/mpi/hostfile -- \
        mpirun -np 2 retinanet train "${short[@]}"
}

[ -n "${BASE:-}" ] || make_base
build "$@"
run "who runs it, and where" -- sh -c 'id; numactl --show; lstopo-no-graphics --of console'
keep_runs demo
run "the demo, as \`podman run $IMAGE\` with a folder for runs, and without a network" \
    "${volume[@]}" --network none --
run "predictions" "${volume[@]}" --network none -- retinanet predict \
    --checkpoint runs/demo/checkpoints/best runs/demo/scenes/validation/data/validation-00000.jpg \
    --out runs/predictions
ranks
any_user
stop_it
two_pods
step "done"
