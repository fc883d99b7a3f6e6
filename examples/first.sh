#!/bin/sh
# Set up sentkit in a virtual environment and score the likeness of a few sentences: sh examples/first.sh
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check -c tests/constraints.txt -e .
PATH="$PWD/.venv/bin:$PATH"

printf 'a man plays a guitar\na person makes music\nthe cat sleeps\n' | sentkit encode --precision fp32 | sentkit score
