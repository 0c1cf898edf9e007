"""Builds the optional native library; everything else is in pyproject.toml.

The kernels in csrc/ are plain C++17 with OpenMP behind a C interface, so building them needs neither torch nor
Python headers. Each instruction set is a shared library of its own, compiled from the same sources. Where no
compiler works, the package installs without them and says so once.
"""

import os
import platform
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

SOURCE_FOLDER = Path("csrc")
COMPILE_FLAGS = ["-O3", "-std=c++17", "-fopenmp", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-psabi"]
LINK_FLAGS = ["-shared", "-fopenmp"]
INSTRUCTION_SETS = {"portable": []}
if platform.machine() in ("x86_64", "AMD64"):
    INSTRUCTION_SETS["avx2"] = ["-mavx2", "-mfma"]
    INSTRUCTION_SETS["avx512"] = ["-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mfma"]

NOTICE = """
torchcaps: the native library was not built, the package works without it (slower, more memory).
To get the fused CPU kernels install a C++17 compiler with OpenMP (for example g++) and reinstall;
the environment variables CXX and CXXFLAGS are respected. The compiler said:
{reason}
"""


class BuildNative(build_ext):
    """Compiles csrc/*.cpp once per instruction set into libtorchcaps_<name>.so."""

    def get_ext_filename(self, fullname):
        *packages, name = fullname.split(".")
        return str(Path(*packages, f"{name}.so"))

    def run(self):
        try:
            super().run()
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", None) or str(error)
            print(NOTICE.format(reason=reason.strip()[-2000:]), file=sys.stderr)

    def build_extensions(self):
        for extension in self.extensions:
            self.build_extension(extension)

    def get_outputs(self):
        return [path for path in super().get_outputs() if Path(path).exists()]

    def copy_extensions_to_source(self):
        self.extensions = [extension for extension in self.extensions if self.is_built(extension)]
        super().copy_extensions_to_source()

    def is_built(self, extension):
        return (Path(self.build_lib) / self.get_ext_filename(extension.name)).exists()

    def build_extension(self, extension):
        compiler = shlex.split(os.environ.get("CXX", "c++"))
        extra = shlex.split(os.environ.get("CXXFLAGS", ""))
        objects = Path(self.build_temp) / extension.name
        objects.mkdir(parents=True, exist_ok=True)
        newest_header = max(header.stat().st_mtime for header in SOURCE_FOLDER.glob("*.h"))

        def compile_source(source):
            target = objects / Path(source).with_suffix(".o").name
            newest = max(newest_header, Path(source).stat().st_mtime)
            if self.force or not target.exists() or target.stat().st_mtime < newest:
                flags = [*COMPILE_FLAGS, *extension.extra_compile_args, *extra]
                self.call([*compiler, *flags, "-c", source, "-o", str(target)])
            return str(target)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compiled = list(pool.map(compile_source, extension.sources))
        library = Path(self.get_ext_fullpath(extension.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        # Linked beside its place and moved: a process that has the old library loaded keeps it intact.
        fresh = library.with_suffix(".new")
        self.call([*compiler, *LINK_FLAGS, *extra, *compiled, "-o", str(fresh)])
        fresh.replace(library)

    def call(self, command):
        subprocess.run(command, check=True, capture_output=True, text=True)


class NativeWheel(bdist_wheel):
    """Named for the platform alone: the kernels are reached through ctypes, from any Python."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


def native_extensions():
    sources = sorted(str(path) for path in SOURCE_FOLDER.glob("*.cpp"))
    return [
        Extension(f"torchcaps.native.libtorchcaps_{name}", sources, extra_compile_args=flags)
        for name, flags in INSTRUCTION_SETS.items()
    ]


setup(ext_modules=native_extensions(), cmdclass={"build_ext": BuildNative, "bdist_wheel": NativeWheel})
