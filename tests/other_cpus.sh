#!/bin/sh
# Run the tests that compare digits as on other CPUs: sh tests/other_cpus.sh [pytest options]
# The variables limit the instructions that OpenBLAS (numpy), torch, MKL and oneDNN use. They cannot add instructions.
set -eu
cd "$(dirname "$0")/.."
files=$(grep -rlE 'allclose|approx|bf16|int8|array_equal' tests --include='test_*.py')
failed=
for cpu in \
    'OPENBLAS_CORETYPE=Haswell ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2' \
    'OPENBLAS_CORETYPE=Zen MKL_CBWR=COMPATIBLE' \
    'OPENBLAS_CORETYPE=Nehalem ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41'
do
    echo "$cpu"
    # shellcheck disable=SC2086  # both lists have no blanks in their items
    env $cpu .venv/bin/python -m pytest -q $files "$@" || failed="$failed; $cpu"
done
[ -z "$failed" ] || { echo "failed${failed#;}" >&2 && exit 1; }
