# RetinaNet training for CPUs, as an image. docs/docker.md describes how to build and run it: on a
# laptop, rootless, with Podman, with Apptainer under Slurm, on Kubernetes.
#
#   make image                                      # docker build, with version and commit as labels
#   docker run -v retinanet-runs:/app/runs retinanet-cpu                # trains the demo

# Debian 12, or 13 with a newer Python. Give a digest (debian@sha256:…) where builds must be the same to the byte.
ARG BASE=docker.io/library/debian:bookworm-slim

FROM ${BASE} AS build
ENV DEBIAN_FRONTEND=noninteractive UV_NO_CACHE=1
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates g++ python3 python3-venv
WORKDIR /app
COPY setup.sh requirements.txt ./
COPY requirements requirements

# Address of an index of CPU-only wheels of torch and torchvision: an image of a third of the size.
# Without one torch comes from the package registry, which always works.
ARG TORCH_INDEX=
RUN ./setup.sh

# 1: videos for `predict`, ONNX for `export`.
ARG SERVING=0
RUN [ "$SERVING" = 0 ] || ./setup.sh serving

COPY . .

RUN .venv/bin/retinanet compile \
    && .venv/bin/python -m launch.image.prune .venv \
    && rm -rf .uv

FROM ${BASE}
ENV DEBIAN_FRONTEND=noninteractive
# libtcmalloc: engine.allocator=tcmalloc. numactl and hwloc show what a container is given. ssh:
# mpirun between containers, as of Kubernetes' MPIJob. tini passes signals on as process 1.
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates python3 libtcmalloc-minimal4 numactl hwloc-nox openssh-client \
        openssh-server tini \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* \
    && useradd --create-home --uid 1000 retinanet \
    && chmod 1777 /home/retinanet

COPY launch/image/ssh_config /etc/ssh/ssh_config.d/retinanet.conf
WORKDIR /app
COPY --from=build /app /app
# Any user of the container may write to runs, and to nothing else.
RUN install -d -m 1777 runs

# `make image` gives both.
ARG COMMIT=unknown
ARG VERSION=unknown
RUN echo "$COMMIT" >COMMIT
RUN [ "$VERSION" = unknown ] || grep -qxF "version = \"$VERSION\"" pyproject.toml \
    || { echo "VERSION=$VERSION is not the version in pyproject.toml" >&2; exit 2; }
LABEL org.opencontainers.image.title="retinanet-cpu" \
    org.opencontainers.image.description="RetinaNet-ResNeXt50 training for CPUs, and ProfileDNN" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$COMMIT"

# A read-only root has no place for matplotlib in the home.
ENV PATH=/app/.venv/bin:$PATH HOME=/home/retinanet MPLCONFIGDIR=/tmp/matplotlib PYTHONUNBUFFERED=1
# A number, by which Kubernetes sees that it is not root (runAsNonRoot).
USER 1000:1000
ENTRYPOINT ["tini", "-s", "--"]
HEALTHCHECK --interval=60s --timeout=10s --start-period=5m CMD ["python", "-m", "launch.image.health"]
CMD ["retinanet", "train", "--config", "demo.yaml"]
