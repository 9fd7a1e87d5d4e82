#!/usr/bin/env bash
# Make .venv with the packages of requirements.txt, in which a second call finds everything in place. An argument:
#   dev, serving, openvino, fuzz   install requirements/dev.txt and so on, which include requirements.txt
#   ipex, intel-mpi, open-mpi   make .venv-ipex from requirements/ipex.txt, and so on
#   compiler, tools, browser   look for what kernels and tests call; as root on Debian install what is missing
#   pythons              print the Pythons that the program can use, the newest first
#   uv ARGUMENTS         run uv, which installs the packages
# Variables: PYTHON (default: the environment's, else the newest of 3.11 to 3.14 that is here); TORCH_INDEX, an index of
# CPU-only wheels of torch; SETUP_VENV, the folder in place of .venv; PINS, the folder of requirements.txt and requirements/.
set -Eeuo pipefail
trap 'exit 130' INT TERM # not on to the next step
cd "$(dirname "$0")"
VERSIONS="3.14 3.13 3.12 3.11" compiler=${CXX:-$(command -v c++ || echo g++)}

fail() { printf 'setup: %s\n' "$1" >&2; exit 2; }

is_version() { # PYTHON VERSIONS
    "$1" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] not in '$2'.split())" 2>/dev/null
}

# pyenv's programs on PATH fail where no version is selected, so its folders are searched as well.
list_pythons() {
    local version candidate
    for version in $VERSIONS; do
        for candidate in "python$version" python3 "${PYENV_ROOT:-${HOME:-}/.pyenv}/versions/$version".*/bin/python; do
            ! is_version "$candidate" "$version" || { command -v "$candidate"; break; }
        done
    done
}

find_python() {
    local python=${PYTHON:-$(list_pythons | head -n 1)}
    is_version "${python:-none}" "$VERSIONS" ||
        fail "needs Python ${VERSIONS##* } to ${VERSIONS%% *}, found ${PYTHON:-none}; install one (Debian and Ubuntu: apt-get install python3-venv), or set PYTHON=/path/to/python3.13"
    printf '%s' "$python"
}

# uv installs in seconds, and a second environment shares the files of the first. The one on PATH is used unless
# it is old, else .uv is made. It takes the index and the certificates that pip does.
run_uv() {
    local uv python index
    python=$(find_python) || exit
    for uv in uv .uv/bin/uv ''; do "$uv" pip install --requirements x --help >/dev/null 2>&1 && break; done # before 0.5 it has no such option
    if [ -z "$uv" ]; then
        "$python" -c 'import ensurepip, venv' 2>/dev/null ||
            fail "$python has no venv module; install it (Debian and Ubuntu: apt-get install python3-venv), or install uv"
        "$python" -m venv --clear .uv
        .uv/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
    fi
    index="config get global.index-url" # Debian's Python has no pip, that of .uv has
    index=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-$({ "$python" -m pip $index || .uv/bin/python -m pip $index; } 2>/dev/null || true)}}
    env UV_PYTHON="$python" UV_PYTHON_DOWNLOADS=never UV_NATIVE_TLS=1 UV_SYSTEM_CERTS=1 ${index:+UV_DEFAULT_INDEX="$index"} "${uv:-.uv/bin/uv}" "$@"
}

write_program() { # PATH: for this checkout; sh reads two lines and Python all, since a path may have spaces
    rm -f "$1" # it may be a link
    printf '%s\n' '#!/bin/sh' "'''exec' \"${1%/*}/python\" \"\$0\" \"\$@\" # '''" 'import sys' "sys.path[0] = \"$PWD\"" \
        'from retinanet.__main__ import run' 'sys.exit(run())' >"$1" && chmod +x "$1"
}

install_packages() { # ENVIRONMENT FILE
    local environment=$1 name=${2##*/} file=${PINS:-.}/$2 marker made=$1/.setup-index index wanted options=(--strict --no-deps)
    marker=$1/.setup-${name%.txt} wanted=$(sha256sum <"$file") index=${TORCH_INDEX:-$(cat "$made" 2>/dev/null || true)} # that of its first call
    trap 'fail "installing failed, see above; check the network, the package index and the free space ($(df -h --output=avail . | tail -n 1 | tr -d " ") here), then run the same command again"' ERR
    # Made anew: a broken environment, an interrupted set-up, and for another PYTHON or index: its wheels have the same versions.
    if [ -e "$environment/.setup-started" ] || ! "$environment/bin/python" -c '' 2>/dev/null || { [ -e "$made" ] && [ "$(cat "$made")" != "$index" ]; } ||
        { [ -n "${PYTHON:-}" ] && find_python >/dev/null && [ "$("$PYTHON" -V)" != "$("$environment/bin/python" -V)" ]; }; then
        [ ! -e "$environment" ] || [ -e "$environment/pyvenv.cfg" ] || [ -e "$environment/.setup-started" ] || fail "$environment is not an environment of Python; move it away, or give another name"
        rm -rf "$environment" && mkdir -p "$environment" && touch "$environment/.setup-started"
        run_uv venv --quiet --seed --no-project --allow-existing "$environment"
        printf '%s' "$index" >"$made"
    fi
    [[ $environment = *-mpi ]] || write_program "$(cd "$environment/bin" && pwd)/retinanet"
    if [ "$(cat "$marker" 2>/dev/null)" = "$wanted" ]; then
        [ "$2" = requirements.txt ] && options+=(--quiet) || return 0 # `make setup` mends what was changed by hand
    fi
    # CPU-only wheels need no libraries of GPUs. Their index has old versions of other packages too, hence best-match.
    if [ -n "$index" ]; then
        grep -vE '^(triton|cuda-[a-z-]+|nvidia-[a-z0-9-]+)==' "$file" >"$environment/for-cpus.txt"
        file=$environment/for-cpus.txt options+=(--index "$index" --index-strategy unsafe-best-match)
    fi
    [[ " ${options[*]} " = *" --quiet "* ]] || echo "setup: installing $(grep -c == "$file") packages into $environment, with $("$environment/bin/python" --version)"
    run_uv pip install --python "$environment" "${options[@]}" --requirements "$file"
    rm -f "$environment/.setup-started" && printf '%s\n' "$wanted" >"$marker"
}

require_program() { # PROGRAM PACKAGE PURPOSE
    local get="env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::http::Timeout=20"
    if command -v "${1%% *}" >/dev/null; then return; fi
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        echo "setup: installing $2 by apt-get, for $3"
        { $get update || true; $get install -y --no-install-recommends "$2"; } >/dev/null 2>&1 </dev/null || true
        if command -v "${1%% *}" >/dev/null; then return; fi
    fi
    fail "no ${1%% *} on PATH, needed for $3; install it (Debian and Ubuntu: apt-get install $2)"
}

# Only one test needs a browser. A program of that name may be an empty shell, as Ubuntu's chromium-browser.
require_browser() {
    local name
    for name in chromium-headless-shell chromium chromium-browser google-chrome; do
        if "$name" --version >/dev/null 2>&1 </dev/null; then return; fi
    done
    (require_program chromium chromium "the test of the report's page, which is skipped without") || true
}

# Two at once, as of two terminals, would take each other's half-made environment away. A status other than 1
# means that this file system has no locks, or this machine no flock.
exec 9<"./${0##*/}"
flock --nonblock 9 2>/dev/null || [ $? != 1 ] || { echo "setup: another set-up is running in this folder; waiting for it" >&2; flock 9; }

case "$*" in
'') install_packages "${SETUP_VENV:-.venv}" requirements.txt ;;
dev | serving | openvino | fuzz) install_packages "${SETUP_VENV:-.venv}" "requirements/$1.txt" ;;
ipex) VERSIONS="3.13 3.12 3.11" install_packages .venv-ipex requirements/ipex.txt ;; # torch 2.8 knows no 3.14
intel-mpi | open-mpi) install_packages ".venv-$1" "requirements/$1.txt" ;;
compiler) require_program "$compiler" g++ "the C++ kernels" ;;
tools) for pair in "$compiler:g++" git:git pgrep:procps ip:iproute2; do require_program "${pair%:*}" "${pair#*:}" tests; done ;;
browser) require_browser ;;
pythons) list_pythons ;;
uv\ *) run_uv "${@:2}" ;;
*) fail "unknown argument $*; known are: dev, serving, openvino, fuzz, ipex, intel-mpi, open-mpi, compiler, tools, browser, pythons, uv" ;;
esac
