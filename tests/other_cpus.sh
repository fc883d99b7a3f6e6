#!/bin/sh
# Run the tests with each choice of --precision auto, and those that compare digits as on other CPUs:
# sh tests/other_cpus.sh [pytest options]
# The other variables limit the instructions that OpenBLAS (numpy), torch, MKL and oneDNN use. They cannot add any.
set -eu
cd "$(dirname "$0")/.."
compare=$(grep -rlE 'allclose|approx|bf16|int8|array_equal' tests --include='test_*.py')
failed=
for setting in \
    'SENTKIT_PRECISION=fp32' \
    'SENTKIT_PRECISION=bf16' \
    'OPENBLAS_CORETYPE=Haswell ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2' \
    'OPENBLAS_CORETYPE=Zen MKL_CBWR=COMPATIBLE' \
    'OPENBLAS_CORETYPE=Nehalem ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41'
do
    echo "$setting"
    case $setting in SENTKIT*) files=tests ;; *) files=$compare ;; esac
    # shellcheck disable=SC2086  # both lists have no blanks in their items
    env $setting .venv/bin/python -m pytest -q $files "$@" || failed="$failed; $setting"
done
[ -z "$failed" ] || { echo "failed${failed#;}" >&2 && exit 1; }
