#!/bin/sh
# Run the tests with other versions of torch, each in its own environment:
#     sh tests/other_torch.sh [VERSION ...]
# By default with the oldest one that pyproject.toml allows, and with the newest. These builds may
# bring CUDA along; PIP_EXTRA_INDEX_URL can name an index of builds without it.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
[ $# -gt 0 ] || set -- 2.6.0 newest
failed=0
for version in "$@"; do
    requirement="torch==$version"
    [ "$version" != newest ] || requirement=torch
    environment=.venv-torch-$version
    [ -x "$environment/bin/python" ] || "$python" -m venv "$environment"
    # Without the pins of torch and of packages whose versions it chooses.
    grep -v -E '^(torch|sympy|mpmath|networkx)==' tests/constraints.txt > "$environment/constraints.txt"
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade \
        -c "$environment/constraints.txt" "$requirement" -e '.[test]'
    "$environment/bin/python" -c 'import torch; print("torch", torch.__version__)'
    "$environment/bin/python" -m pytest -n auto --maxprocesses 4 --dist worksteal || failed=$?
done
exit $failed
