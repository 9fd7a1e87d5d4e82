#!/usr/bin/env bash
# Compile accimage into .venv: launch/image/install_accimage.sh SOURCE, where SOURCE is an argument of
# pip. It decodes with libjpeg-turbo and Intel's IPP, which is in the package registry.
set -euo pipefail
case "$1" in git+*) git=git ;; *) git= ;; esac
apt-get install -y --no-install-recommends gcc python3.11-dev libjpeg-dev $git
# accimage pins no version of IPP.
.venv/bin/python -m pip install ipp-devel==2026.1.0
# pip puts IPP below .venv, where neither the compiler nor the dynamic linker looks: hence rpath.
libraries=$PWD/.venv/lib
CPATH=$PWD/.venv/include/ipp:$PWD/.venv/include LIBRARY_PATH=$libraries \
    LDFLAGS=-Wl,-rpath,$libraries \
    .venv/bin/python -m pip install --no-deps --no-build-isolation "$1"
.venv/bin/python -c 'import accimage'
