#!/usr/bin/env bash
# Make .venv with the packages of requirements.txt; `./setup.sh ipex` adds those of
# requirements-ipex.txt. `make demo` and `make test` call this; a second call finds everything in
# place and returns at once. Settings, from the environment:
#   PYTHON       a Python 3.11 (default: python3.11, else python3 if that is one)
#   TORCH_INDEX  a package index with CPU-only wheels of torch and torchvision
set -euo pipefail
trap 'exit 130' INT TERM # not on to the next step
cd "$(dirname "$0")"

fail() {
    printf 'setup: %s\n' "$1" >&2
    exit 2
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            printf '%s' "$candidate"
            return
        fi
    done
    fail "needs Python 3.11, looked for ${PYTHON:-python3.11 and python3}; install python3.11, or set PYTHON=/path/to/python3.11"
}

make_environment() {
    local python
    python=$(find_python)
    # A set-up that was interrupted is started anew; an environment made by somebody else is kept.
    if [ -e .venv/.setup-started ]; then rm -rf .venv; fi
    if [ ! -x .venv/bin/python ]; then
        "$python" -c 'import ensurepip, venv' 2>/dev/null ||
            fail "$python has no venv module; install it (Debian and Ubuntu: apt-get install python3.11-venv)"
        mkdir .venv
        touch .venv/.setup-started
        "$python" -m venv .venv
    fi
}

# Everything is pinned, so nothing is resolved; `pip check` says whether the pins agree.
install=(.venv/bin/python -m pip install --disable-pip-version-check --no-deps)

check_pins() {
    .venv/bin/python -m pip check --disable-pip-version-check
}

install_packages() {
    if [ -n "${TORCH_INDEX:-}" ]; then
        grep -E '^(torch|torchvision)==' requirements.txt >.venv/torch.txt
        grep -vE '^(torch|torchvision|triton|nvidia-[a-z0-9-]+)==' requirements.txt >.venv/others.txt
        "${install[@]}" --index-url "$TORCH_INDEX" -r .venv/torch.txt || return
        "${install[@]}" -r .venv/others.txt || return
    else
        "${install[@]}" -r requirements.txt || return
    fi
    check_pins
}

install_ipex() {
    # The wheel is the same for every torch 2.8, CPU-only or not.
    "${install[@]}" -r requirements-ipex.txt && check_pins
}

is_finished() { # MARKER WANTED
    [ -e ".venv/$1" ] && [ "$(cat ".venv/$1")" = "$2" ]
}

fail_installing() {
    fail "installing failed, see above; check the network, pip's settings and the free space ($(df -h --output=avail . | tail -n 1 | tr -d ' ') here), then run the same command again"
}

case "$*" in
'' | ipex) ;;
*) fail "unknown argument $*; known is: ipex" ;;
esac

wanted="$(sha256sum <requirements.txt) ${TORCH_INDEX:-}"
if ! is_finished .setup-finished "$wanted"; then
    echo "setup: making .venv: $(grep -cE '==' requirements.txt) packages, up to 7 GB on disk, a few minutes"
    make_environment
    install_packages || fail_installing
    rm -f .venv/.setup-started
    printf '%s\n' "$wanted" >.venv/.setup-finished
fi

if [ "$*" = ipex ]; then
    wanted="$wanted $(sha256sum <requirements-ipex.txt)"
    if ! is_finished .setup-ipex-finished "$wanted"; then
        echo "setup: adding the IPEX engine to .venv: 270 MB on disk"
        install_ipex || fail_installing
        printf '%s\n' "$wanted" >.venv/.setup-ipex-finished
    fi
fi
