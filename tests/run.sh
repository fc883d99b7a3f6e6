#!/bin/sh
# Set up a virtual environment and run every check and test, from a bare checkout: sh tests/run.sh [pytest options]
set -eu
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE # the tests start many processes, and each would compile every module again
python=${PYTHON:-python3}
[ -x .venv/bin/python ] || "$python" -m venv .venv
# pip takes ten seconds to find out that nothing has changed.
installed() { pwd; cat pyproject.toml tests/constraints.txt; }
if ! installed | cmp -s - .venv/installed; then
    .venv/bin/python -m pip install --quiet --no-compile --disable-pip-version-check -c tests/constraints.txt -e '.[test]'
    installed > .venv/installed
fi
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy & # beside the tests, which start with one process
types=$!
failed=0
.venv/bin/python -m pytest -n auto --maxprocesses 4 --dist worksteal "$@" || failed=$?
wait $types || failed=1
exit $failed
