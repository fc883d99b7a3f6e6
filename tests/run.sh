#!/bin/sh
# Set up a virtual environment and run every check and test, from a bare checkout: sh tests/run.sh [pytest options]
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
unset PYTHONDONTWRITEBYTECODE  # each import is compiled once, not in each process
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -c tests/constraints.txt -e '.[test]'
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
exec .venv/bin/python -m pytest -n auto --maxprocesses 4 --dist worksteal "$@"
