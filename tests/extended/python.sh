#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Python package as its users get it. python.sh SOURCE_DIR FOLDER torch|wheel|tests [LIBRARY]
#   torch: a new virtual environment with PyTorch; wheel: the package's; tests: the wheel installed there, and tested,
#   also with LIBRARY, libadamant_c over an imitation of CUDA
set -euo pipefail
package=$1/python
folder=$2
case $3 in
torch)
    rm -rf "$folder/venv"
    python3 -m venv "$folder/venv"
    # uv unpacks 6 GB in a third of pip's time. It does not read pip's settings: where it fails, pip installs.
    requirements=(--quiet -r "$package/tests/requirements.txt")
    { "$folder/venv/bin/pip" install --quiet uv &&
        "$folder/venv/bin/uv" pip install --no-cache --system-certs --python "$folder/venv/bin/python" "${requirements[@]}"; } ||
        "$folder/venv/bin/pip" install --no-compile "${requirements[@]}"
    ;;
wheel)
    rm -rf "$folder/wheel"
    python3 -m venv "$folder/builder"
    "$folder/builder/bin/pip" wheel --quiet --no-deps --wheel-dir "$folder/wheel" "$1"
    ls "$folder"/wheel/adamant_optim-*-cp39-abi3-*.whl
    ;;
tests)
    "$folder/venv/bin/pip" install --quiet --no-deps --force-reinstall "$folder"/wheel/*.whl
    cd "$folder"
    "$folder/venv/bin/adamant" help
    "$folder/venv/bin/python" -m pytest -q -n 2 -p no:cacheprovider "$package/tests"
    if [[ -n ${4:-} ]]; then
        ADAMANT_C_LIBRARY=$4 "$folder/venv/bin/python" -m pytest -q -n 2 -p no:cacheprovider "$package/tests/gpu_suite.py"
    fi
    ;;
esac
