#!/bin/sh
# Build an image and run the first pipe in it. Without a builder, run the steps of the image in a
# temporary folder.
# Usage: sh examples/container/check.sh [INDEX]
# INDEX: an additional package index, such as https://download.pytorch.org/whl/cpu for CPUs only.
set -eu
index=${1:-}
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

works() {
    command -v "$1" > /dev/null && "$@" > /dev/null 2>&1
}

if works docker info || works podman info; then
    builder=docker
    works docker info || builder=podman
    echo "check.sh: building with $builder" >&2
    $builder build -q -f examples/container/Dockerfile -t sentkit:check --build-arg INDEX="$index" . >&2
    sentkit() { $builder run -i --rm sentkit:check "$@"; }
elif works apptainer version; then
    echo 'check.sh: building with apptainer' >&2
    apptainer build --build-arg INDEX="$index" "$folder/sentkit.sif" examples/container/sentkit.def >&2
    sentkit() { apptainer run "$folder/sentkit.sif" "$@"; }
else
    echo 'check.sh: no docker, podman or apptainer works here: running the steps of the image' >&2
    CONSTRAINTS=tests/constraints.txt sh examples/container/install.sh "$PWD" "$folder/sentkit" "$index" >&2
    sentkit() { (cd "$folder" && env -u PYTHONPATH "$folder/sentkit/bin/sentkit" "$@"); }
fi
printf 'a man plays a guitar\na person makes music\n' | sentkit encode --precision fp32 | sentkit score
