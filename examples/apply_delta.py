#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Applies a delta to a safetensors file of weights, with NumPy alone. Run: python apply_delta.py WEIGHTS DELTA
docs/changed_weights.md describes deltas. The weights file is replaced when all of it is written."""
import json
import os
import sys
import numpy
BITS = {"BF16": "<u2", "F16": "<u2", "F32": "<u4", "U32": "<u4", "U64": "<u8", "I32": "<i4", "I64": "<i8"}


def read(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(min(int.from_bytes(file.read(8), "little"), os.path.getsize(path))))
        data = bytearray(file.read())  # arrays are views of it
    arrays = {name: numpy.frombuffer(memoryview(data)[slice(*entry["data_offsets"])], BITS[entry["dtype"]])
              for name, entry in header.items() if entry.get("dtype") in BITS}  # others are copied
    return header, header.setdefault("__metadata__", {}), arrays, data


try:
    weights_path, delta_path = sys.argv[1:]
    (header, metadata, weights, data), (entries, change, delta, _) = read(weights_path), read(delta_path)
    if change.get("format") != "changed_weights" or change.get("base") not in (None, metadata.get("version")):
        sys.exit(f"cannot apply a delta of {change.get('base')} to {metadata.get('version')}. Get one without a base.")
    first_index = json.loads(change.get("first_index", "{}"))
    for name, size in json.loads(change["elements"]).items():
        if (values := delta.get(f"{name}.values")) is not None:
            indices = delta.get(f"{name}.indices", numpy.arange(size)).astype("i8") + first_index.get(name, 0)
            if header.get(name, {}).get("dtype") != entries[f"{name}.values"]["dtype"] or weights[name].size != size:
                sys.exit(f"cannot apply a delta of {name}: {weights_path} has another type or size, or none.")
            assert indices.size == values.size and (indices >= 0).all(), f"{name}'s indices are not those of its values"
            weights[name][indices] = values
    metadata["version"] = change["version"]
    text = (raw := json.dumps(header).encode()) + b" " * (-len(raw) % 8)
    with open(f"{weights_path}.new", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
    os.replace(f"{weights_path}.new", weights_path)
except Exception as error:
    sys.exit(f"cannot run {' '.join(sys.argv)}: {type(error).__name__}: {error}. Give a file of weights and a delta.")
