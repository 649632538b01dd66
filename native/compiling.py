"""Turns a unit's source into its library; run by `builder` in a process of its own, in a folder of its own.

``python compiling.py '{"modules": [...], "group": "mainspring_core", "library": "..."}'`` in a folder that
holds the source. It uses mypyc for Python to C and the C compiler that Python was built with. One C file
for each module: several cores compile them side by side, in half the time that one large file takes.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import setuptools  # noqa: F401 (before distutils, which it provides from Python 3.12 on)
from mypyc.build import mypycify

SETTINGS = """\
[mypy]
namespace_packages = True
explicit_package_bases = True
ignore_missing_imports = True
[mypy-numpy.*]
follow_imports = skip
"""
"""No type of numpy makes code quicker, and reading them takes longer than all else."""
OPTIMISATION = "2"
HIDDEN = "-fvisibility=hidden"
"""Nobody else calls what is compiled here, so that calls among it need not go through the linker's tables."""


def main() -> None:
    """Compile what the argument says."""
    wanted = json.loads(sys.argv[1])
    Path("mypy.ini").write_text(SETTINGS, encoding="utf-8")
    extensions = mypycify(
        ["--config-file=mypy.ini", *wanted["files"]],
        opt_level=OPTIMISATION,
        debug_level="0",
        multi_file=True,
        target_dir="c",
        group_name=wanted["group"],
    )
    shared = next(extension for extension in extensions if extension.name == wanted["library"])
    link(shared.sources, shared.include_dirs, shared.extra_compile_args, wanted["output"])


def link(sources: list[str], include: list[str], options: list[str], output: str) -> None:
    """Compile C files and link them to one library."""
    from distutils import ccompiler, sysconfig

    compiler = ccompiler.new_compiler()
    sysconfig.customize_compiler(compiler)
    include = [*include, sysconfig.get_python_inc(), sysconfig.get_python_inc(plat_specific=True)]
    # A warning that a newer compiler has for generated code is no reason to do without it.
    options = [*(option for option in options if option != "-Werror"), HIDDEN]

    def compile_one(source: str) -> list[str]:
        return list(compiler.compile([source], output_dir="o", include_dirs=include, extra_postargs=options))

    os.mkdir("o")
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        objects = [path for paths in pool.map(compile_one, sources) for path in paths]
    compiler.link_shared_object(objects, output)


if __name__ == "__main__":
    main()
