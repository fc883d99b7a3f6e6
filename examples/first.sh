#!/bin/sh
# Install sentkit into the virtual environment .venv and score the similarity of three sentences.
# Usage: sh examples/first.sh [INDEX]
# INDEX: an additional package index. On a machine without a GPU, that of PyTorch's CPU builds:
#   sh examples/first.sh https://download.pytorch.org/whl/cpu
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
quiet=--quiet
if [ $# -gt 0 ]; then
    export PIP_EXTRA_INDEX_URL="$1"
fi
if [ ! -x .venv/bin/python ]; then
    echo 'first.sh: making the virtual environment .venv' >&2
    "$python" -m venv .venv
fi
if [ ! -x .venv/bin/sentkit ]; then
    quiet=''
    echo 'first.sh: downloading sentkit with PyTorch, Parquet and pictures; this can take minutes.' >&2
    if [ -n "${PIP_EXTRA_INDEX_URL:-}" ]; then
        echo "first.sh: with the CPU build of PyTorch it takes 1.5 GB. Additional index: $PIP_EXTRA_INDEX_URL" >&2
    else
        cat >&2 <<END
first.sh: on Linux, pip installs PyTorch with CUDA: several GB. Without a GPU, stop this (Ctrl-C) and type:
  sh examples/first.sh https://download.pytorch.org/whl/cpu
END
    fi
fi
# shellcheck disable=SC2086 # one flag or none
.venv/bin/python -m pip install $quiet --disable-pip-version-check -c tests/constraints.txt -e '.[parquet,plot]' >&2
PATH="$PWD/.venv/bin:$PATH"

printf 'a man plays a guitar\na person makes music\nthe cat sleeps\n' | sentkit encode --precision fp32 | sentkit score
cat >&2 <<END
first.sh: sentkit is installed. To use it in this shell, type:
  . '$PWD/.venv/bin/activate'
Without this, the program is '$PWD/.venv/bin/sentkit'.
END
