"""The structures of the XLA FFI handler against the C headers of the jax that is installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from zkdv import _native

jax = pytest.importorskip("jax", reason="the headers come with jax")


def test_layouts_are_those_of_the_headers_of_the_installed_jax(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler is on PATH: cc, gcc and clang were looked for")
    ours = _native.xla_ffi_layout()
    lines = []
    for place in ours:
        structure, _, member = place.partition(".")
        expression = f"offsetof({structure}, {member})" if member else f"sizeof({structure})"
        lines.append(f'printf("{place} %zu\\n", (size_t){expression});')
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n"
        '#include "xla/ffi/api/c_api.h"\n'
        "int main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n"
    )
    program = tmp_path / "layout"
    subprocess.run(
        [compiler, "-std=gnu11", "-I", jax.ffi.include_dir(), "-o", str(program), str(source)], check=True, timeout=120
    )
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True, timeout=60).stdout
    theirs = {place: int(number) for place, number in (line.split() for line in printed.splitlines())}
    assert len(theirs) > 40
    assert ours == theirs


def test_element_types_are_those_of_the_headers_of_the_installed_jax() -> None:
    header = (Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h").read_text()
    theirs = {}
    for line in header.splitlines():
        name, separator, number = line.strip().rstrip(",").partition(" = ")
        if separator and name.startswith("XLA_FFI_DataType_"):
            theirs[name.removeprefix("XLA_FFI_DataType_")] = int(number)
    assert theirs.pop("INVALID") == 0
    known = _native.xla_ffi_element_types()
    assert set(theirs.values()) == set(known.values())
    spelled = {"PRED": "bool", "BF16": "bfloat16", "C64": "complex64", "C128": "complex128", "TOKEN": "token"}
    for name, number in theirs.items():
        expected = spelled.get(name) or (
            name.lower().replace("f8", "float8_").replace("f4", "float4_")
            if name.startswith(("F8", "F4"))
            else {"S": "int", "U": "uint", "F": "float"}[name[0]] + name[1:]
        )
        assert known[expected] == number
