#!/bin/sh
# Install sentkit into the virtual environment .venv and score the similarity of three sentences.
# Usage: sh examples/first.sh
# On a machine without a GPU, where pip may install the much larger CUDA build of PyTorch:
#   PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu sh examples/first.sh
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
quiet=--quiet
if [ ! -x .venv/bin/python ]; then
    echo 'first.sh: making the virtual environment .venv' >&2
    "$python" -m venv .venv
fi
if [ ! -x .venv/bin/sentkit ]; then
    echo 'first.sh: installing sentkit with torch, Parquet and pictures: 1.5 GB, or several GB with CUDA; this can take minutes' >&2
    [ -n "${PIP_EXTRA_INDEX_URL:-}" ] || cat >&2 <<END
first.sh: without a GPU, stop this (Ctrl-C) and type:
  PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu sh examples/first.sh
END
    quiet=''
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
