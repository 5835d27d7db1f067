# SPDX-License-Identifier: Apache-2.0
"""ctypes structs and functions equal those of the C header."""
import ctypes
import re
from pathlib import Path

import pytest

from adamant import _arrays, _library

header = Path(__file__).parents[2] / "include" / "adamant" / "adamant.h"
text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
types = {"size_t": ctypes.c_size_t, "double": ctypes.c_double, "int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32,
         "uint64_t": ctypes.c_uint64, "int64_t": ctypes.c_int64}
types.update({name: types[kind] for kind, name in re.findall(r"typedef (int32_t) (\w+);", text)})


@pytest.mark.parametrize("struct", _library.Struct.__subclasses__(), ids=lambda struct: struct.name_in_c)
def test_structs_have_the_fields_of_the_header(struct):
    body = re.search(r"typedef struct %s \{(.*?)\} %s;" % (struct.name_in_c, struct.name_in_c), text, re.S).group(1)
    fields = []
    for line in filter(None, (line.strip() for line in body.split(";"))):
        kind, name = re.fullmatch(r"(.*?)(\w+)", line, re.S).groups()
        fields.append((name, "*" in kind or "_reduce" in kind or "_weights_ready" in kind, kind.replace("const", "").strip()))
    assert [name for name, *_ in fields] == [name for name, _ in struct._fields_]
    for (name, is_pointer, kind), (_, python) in zip(fields, struct._fields_):
        if is_pointer:
            assert ctypes.sizeof(python) == 8 and python not in types.values(), name
        else:
            assert python is types[kind], name


@pytest.mark.parametrize("function", _library._functions)
def test_functions_take_as_many_arguments_as_in_the_header(function):
    arguments = re.search(r"\b%s\((.*?)\);" % function, text, re.S).group(1).split(",")
    assert len(_library._functions[function]) == len(arguments)
    for python, c in zip(_library._functions[function], arguments):
        if "*" in c or "[" in c:
            assert ctypes.sizeof(python) == 8
        else:
            assert python is types[c.split()[0]], c


def test_constants_are_those_of_the_header():
    assert f"#define ADAMANT_C_VERSION {_library.C_VERSION}\n" in text
    assert f"#define ADAMANT_SQUARES_WORDS {_library.SQUARES_WORDS}\n" in text
    for code, error in _library._errors.items():
        words = re.sub(r"(?<!^)(?=[A-Z])", "_", error.__name__).upper()
        assert re.search(rf"ADAMANT_{words} = {code}\b", text), error


def test_element_types_are_those_of_the_header():
    in_c = {name.lower(): int(value) for name, value in re.findall(r"ADAMANT_(\w+) = (\d+)", text.split("adamant_dtype;")[1].split("};")[0])}
    known = {"none": 0, **_arrays.DTYPES, "split_float32": _arrays.SPLIT_FLOAT32, "quantized8": _arrays.QUANTIZED8}
    assert known == in_c
