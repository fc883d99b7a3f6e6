#!/bin/sh
# The step that both images share: install sentkit with its man pages into the folder PREFIX.
# Usage: sh install.sh SOURCE PREFIX [INDEX]
# SOURCE: a checkout, or a wheel. INDEX: an additional package index, such as that of PyTorch's CPU
# builds, https://download.pytorch.org/whl/cpu. Without it, pip installs PyTorch with CUDA.
# CONSTRAINTS in the environment is a file for `pip install -c`; the images use tests/constraints.txt.
set -eu
source=$1
prefix=$2
if [ -n "${3:-}" ]; then
    export PIP_EXTRA_INDEX_URL="$3"
fi
"${PYTHON:-python3}" -m venv "$prefix"
"$prefix/bin/python" -m pip install --quiet --no-cache-dir --disable-pip-version-check \
    ${CONSTRAINTS:+-c "$CONSTRAINTS"} "$source[zst,parquet,plot,translate]"
"$prefix/bin/sentkit" --version
