#!/usr/bin/env bash
# Make .venv with the packages of requirements.txt. `make demo` and `make test` call this; a second
# call finds everything in place and returns at once. Settings, from the environment:
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

install_packages() {
    # Everything is pinned, so nothing is resolved; `pip check` says whether the pins agree.
    local install=(.venv/bin/python -m pip install --disable-pip-version-check --no-deps)
    if [ -n "${TORCH_INDEX:-}" ]; then
        grep -E '^(torch|torchvision)==' requirements.txt >.venv/torch.txt
        grep -vE '^(torch|torchvision|triton|nvidia-[a-z0-9-]+)==' requirements.txt >.venv/others.txt
        "${install[@]}" --index-url "$TORCH_INDEX" -r .venv/torch.txt || return
        "${install[@]}" -r .venv/others.txt || return
    else
        "${install[@]}" -r requirements.txt || return
    fi
    .venv/bin/python -m pip check --disable-pip-version-check
}

wanted="$(sha256sum <requirements.txt) ${TORCH_INDEX:-}"
if [ -e .venv/.setup-finished ] && [ "$(cat .venv/.setup-finished)" = "$wanted" ]; then exit 0; fi

echo "setup: making .venv: $(grep -cE '==' requirements.txt) packages, up to 7 GB on disk, a few minutes"
make_environment
install_packages || fail "installing failed, see above; check the network, pip's settings and the free space ($(df -h --output=avail . | tail -n 1 | tr -d ' ') here), then run the same command again"
rm -f .venv/.setup-started
printf '%s\n' "$wanted" >.venv/.setup-finished
