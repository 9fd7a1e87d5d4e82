#!/usr/bin/env bash
# Create .venv with the packages of requirements.txt and requirements-dev.txt. `make demo` and `make test`
# call this script; a second call finds everything in place and returns at once. An argument adds more:
#   ipex, serving, fuzz  the packages of requirements-ipex.txt, -serving.txt, -fuzz.txt
#   simd, pillow         replace Pillow by Pillow-SIMD, and put Pillow back
#   simd-beside          install Pillow-SIMD into .venv/simd-beside, for a comparison of the two
#   browser, compiler    look for a browser or a C++ compiler, and install one as root on Debian
#   tools                the compiler and the other programs that tests call
#   latest               .venv-latest, with requirements-latest.txt in place of torch's lines
# Settings, from the environment:
#   PYTHON       a Python 3.11 (default: python3.11, else python3 if that is one)
#   TORCH_INDEX  a package index with CPU-only wheels of torch and torchvision
#   TESTS=0      leave out requirements-dev.txt: for an image, which trains and runs no tests
set -euo pipefail
environment=.venv
if [ "$*" = latest ]; then environment=.venv-latest; fi
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
    if [ -e "$environment"/.setup-started ]; then rm -rf "$environment"; fi
    if [ ! -x "$environment"/bin/python ]; then
        "$python" -c 'import ensurepip, venv' 2>/dev/null ||
            fail "$python has no venv module; install it (Debian and Ubuntu: apt-get install python3.11-venv)"
        mkdir "$environment"
        touch "$environment"/.setup-started
        "$python" -m venv "$environment"
    fi
}

# Everything is pinned, so nothing is resolved; `pip check` says whether the pins agree.
install=("$environment"/bin/python -m pip install --disable-pip-version-check --no-deps)

# Torch, and what it brings along. CPU-only wheels bring nothing.
of_torch='^(torch|torchvision|triton|cuda-[a-z-]+|nvidia-[a-z0-9-]+)=='

pins() {
    if [ "$environment" = .venv ]; then
        cat requirements.txt
    else
        grep -vE "$of_torch" requirements.txt
        cat requirements-latest.txt requirements-serving.txt
    fi
    if [ "${TESTS:-1}" != 0 ]; then cat requirements-dev.txt; fi
}

check_pins() {
    "$environment"/bin/python -m pip check --disable-pip-version-check
}

install_packages() {
    if [ -n "${TORCH_INDEX:-}" ]; then
        pins | grep -E '^(torch|torchvision)==' >"$environment"/torch.txt
        pins | grep -vE "$of_torch" >"$environment"/others.txt
        "${install[@]}" --index-url "$TORCH_INDEX" -r "$environment"/torch.txt || return
        "${install[@]}" -r "$environment"/others.txt || return
    else
        pins >"$environment"/all.txt
        "${install[@]}" -r "$environment"/all.txt || return
    fi
    check_pins
}

# Both packages are the module PIL: pip would let one write over the other, and over a half of it.
# So whatever is there goes first, and a marker says so until a whole one is in its place.
remove_pillow() {
    local site="$environment"/lib/python3.11/site-packages
    touch "$environment"/.setup-pillow-changing
    rm -f "$environment"/.setup-simd-finished
    rm -rf "$site"/PIL "$site"/pillow.libs "$site"/[Pp]illow-*.dist-info "$site"/pillow_simd-*.dist-info
}

put_pillow() {
    remove_pillow
    "${install[@]}" --ignore-installed "$(grep -oE '^pillow==[^ ]+' requirements.txt)" || return
    check_pins || return
    rm "$environment"/.setup-pillow-changing
}

has_pillow_simd() {
    compgen -G "$environment"'/lib/python3.11/site-packages/pillow_simd-*.dist-info' >/dev/null
}

require_headers() {
    local include missing='' pair
    command -v cc >/dev/null || fail "Pillow-SIMD has to be compiled, and there is no C compiler (Debian and Ubuntu: apt-get install gcc)"
    include=$("$environment"/bin/python -c 'import sysconfig; print(sysconfig.get_path("include"))')
    for pair in Python.h:python3.11-dev zlib.h:zlib1g-dev jpeglib.h:libjpeg-dev webp/decode.h:libwebp-dev tiffio.h:libtiff-dev ft2build.h:libfreetype-dev; do
        printf '#include <stdio.h>\n#include <%s>\n' "${pair%:*}" |
            cc -I"$include" -I/usr/include/freetype2 -E - >/dev/null 2>&1 || missing="$missing ${pair#*:}"
    done
    [ -z "$missing" ] || fail "Pillow-SIMD has to be compiled, and headers are missing (Debian and Ubuntu: apt-get install$missing)"
}

# Other packages ask for `pillow`. An empty package of that name tells pip that it is there.
make_stand_in() { # VERSION FOLDER
    rm -rf "$2"
    mkdir -p "$2"
    cat >"$2/pyproject.toml" <<END
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "pillow"
version = "$1+simd"
description = "Empty: pillow-simd is in pillow's place"

[tool.setuptools]
packages = []
END
}

pinned_pillow_simd() {
    grep -oE '^pillow-simd==[^ ]+' requirements-simd.txt
}

compile_pillow_simd() { # FOLDER
    local compiler=cc
    if grep -q avx2 /proc/cpuinfo; then compiler='cc -mavx2'; fi
    # Without the cache: a wheel in it may lack formats, or SIMD. Where there is no pkg-config, it looks
    # for Debian's tiff.h only where CFLAGS say.
    CC=$compiler CFLAGS="-I/usr/include/$(cc -print-multiarch)" "$environment"/bin/python -m pip wheel --disable-pip-version-check --no-deps --no-cache-dir \
        --no-binary pillow-simd --config-settings webp=enable --config-settings tiff=enable --config-settings freetype=enable -w "$1" "$(pinned_pillow_simd)"
}

put_pillow_simd_beside() {
    local wheels="$environment"/simd/wheels
    rm -rf "$environment"/simd-beside
    compile_pillow_simd "$wheels" || return
    "${install[@]}" --no-index --target "$environment"/simd/beside "$wheels"/pillow_simd-*.whl || return
    mv "$environment"/simd/beside "$environment"/simd-beside # at once: half of it would be taken for all
    rm -r "$environment"/simd
}

put_pillow_simd() {
    local pinned wheels="$environment"/simd/wheels version
    pinned=$(pinned_pillow_simd)
    version=${pinned#*==}
    make_stand_in "${version%.post*}" "$environment"/simd/pillow
    compile_pillow_simd "$wheels" || return # before Pillow goes
    "$environment"/bin/python -m pip wheel --disable-pip-version-check --no-deps --no-build-isolation \
        --no-cache-dir -w "$wheels" "$environment"/simd/pillow || return
    remove_pillow
    "${install[@]}" --ignore-installed --no-index "$wheels"/*.whl || return
    check_pins || return
    rm -r "$environment"/simd "$environment"/.setup-pillow-changing
}

find_browser() {
    local candidate
    for candidate in chromium-headless-shell chromium chromium-browser google-chrome; do
        if "$candidate" --version >/dev/null 2>&1 </dev/null; then return; fi
    done
    return 1
}

# Only the test of the report's page needs one, so nothing ends here if there is none.
install_browser() {
    local package
    if find_browser; then return; fi
    if can_install; then
        echo "setup: installing Chromium by apt-get, for the test of the report's page"
        apt_get update || true
        for package in chromium-headless-shell chromium; do
            if apt_get install -y --no-install-recommends "$package" && find_browser; then return; fi
        done
    fi
    echo "setup: no Chromium on PATH, so the test of the report's page will be skipped; install one (Debian and Ubuntu: apt-get install chromium)"
}

# Kernels are compiled when they are first used: without them training is slower, and their tests fail.
has_compiler() {
    local compiler=${CXX:-}
    command -v "${compiler%% *}" >/dev/null || command -v g++ >/dev/null || command -v c++ >/dev/null
}

install_compiler() {
    if has_compiler || install_as_root g++ "for the C++ kernels" && has_compiler; then return; fi
    fail "no C++ compiler on PATH, so the kernels cannot be compiled; install one (Debian and Ubuntu: apt-get install g++)"
}

# What tests, and the pages' commands that are tested, call beside Python.
install_tools() {
    local pair
    install_compiler
    for pair in git:git pgrep:procps ip:iproute2; do
        if command -v "${pair%:*}" >/dev/null || install_as_root "${pair#*:}" "for tests" && command -v "${pair%:*}" >/dev/null; then
            continue
        fi
        fail "no ${pair%:*} on PATH, which tests call; install it (Debian and Ubuntu: apt-get install ${pair#*:})"
    done
}

can_install() {
    command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]
}

install_as_root() { # PACKAGE WHAT-FOR
    can_install || return 1
    echo "setup: installing $1 by apt-get, $2"
    apt_get update || true
    apt_get install -y --no-install-recommends "$1"
}

apt_get() {
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::http::Timeout=20 "$@" >/dev/null 2>&1 </dev/null
}

# Their wheels are the same for every torch of requirements.txt, CPU-only or not.
add_packages() { # NAME WHAT
    local marker=.setup-$1-finished with
    with="$wanted $(sha256sum <"requirements-$1.txt")"
    if is_finished "$marker" "$with"; then return; fi
    echo "setup: adding $2"
    { "${install[@]}" -r "requirements-$1.txt" && check_pins; } || fail_installing
    printf '%s\n' "$with" >"$environment/$marker"
}

is_finished() { # MARKER WANTED
    [ -e "$environment/$1" ] && [ "$(cat "$environment/$1")" = "$2" ]
}

fail_installing() {
    fail "installing failed, see above; check the network, pip's settings and the free space ($(df -h --output=avail . | tail -n 1 | tr -d ' ') here), then run the same command again"
}

# Two at once, as of two terminals, would take each other's half-made environment away.
wait_for_other() {
    command -v flock >/dev/null || return 0
    exec 9<"./${0##*/}"
    held=0
    flock --nonblock 9 2>/dev/null || held=$?
    [ "$held" = 1 ] || return 0 # ours, or a file system without locks
    echo "setup: another set-up is running in this folder; waiting for it"
    flock 9
}

wait_for_other
case "$*" in
browser)
    install_browser
    exit
    ;;
compiler)
    install_compiler
    exit
    ;;
tools)
    install_tools
    exit
    ;;
'' | latest | ipex | serving | fuzz | simd | simd-beside | pillow) ;;
*) fail "unknown argument $*; known are: latest, ipex, serving, fuzz, simd, simd-beside, pillow, browser, compiler, tools" ;;
esac

wanted="$(pins | sha256sum) ${TORCH_INDEX:-}"
if ! is_finished .setup-finished "$wanted"; then
    echo "setup: making $environment: $(pins | grep -c ==) packages, up to 7 GB on disk, a few minutes"
    make_environment
    if has_pillow_simd || [ -e "$environment"/.setup-pillow-changing ]; then
        echo "setup: Pillow comes back in place of Pillow-SIMD, since requirements.txt is not what it was"
        remove_pillow
    fi
    install_packages || fail_installing
    rm -f "$environment"/.setup-started "$environment"/.setup-pillow-changing
    printf '%s\n' "$wanted" >"$environment"/.setup-finished
fi

if [ "$*" = simd ]; then
    wanted_simd="$wanted $(sha256sum <requirements-simd.txt)"
    if ! is_finished .setup-simd-finished "$wanted_simd"; then
        require_headers
        echo "setup: putting Pillow-SIMD in Pillow's place; it lags behind Pillow's security fixes"
        put_pillow_simd || fail_installing
        printf '%s\n' "$wanted_simd" >"$environment"/.setup-simd-finished
    fi
elif [ "$*" = simd-beside ]; then
    wanted_simd="$wanted $(sha256sum <requirements-simd.txt)"
    if ! is_finished .setup-simd-beside-finished "$wanted_simd"; then
        require_headers
        echo "setup: compiling Pillow-SIMD into .venv/simd-beside; Pillow stays in its place"
        put_pillow_simd_beside || fail_installing
        printf '%s\n' "$wanted_simd" >"$environment"/.setup-simd-beside-finished
    fi
elif [ "$*" = pillow ] || [ -e "$environment"/.setup-pillow-changing ]; then
    if has_pillow_simd || [ -e "$environment"/.setup-pillow-changing ]; then
        echo "setup: putting Pillow back in its place"
        put_pillow || fail_installing
    fi
elif has_pillow_simd; then
    echo "setup: Pillow-SIMD is in Pillow's place; \`make pillow\` puts Pillow back"
fi

case "$*" in
ipex) add_packages ipex "the IPEX engine to .venv: 270 MB on disk" ;;
serving) add_packages serving "ONNX, ONNX Runtime and PyAV to .venv: 220 MB on disk" ;;
fuzz) add_packages fuzz "atheris, the fuzzer, to .venv: 62 MB on disk" ;;
esac
