"""Compiles the layers base, net, comm and c10d of the repository around this folder, and the module, against the torch
that is installed. Several files a compiler run: most of the time of each goes into headers."""
import os
import pathlib

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
BUILD = ROOT / "build" / "python"
TOGETHER = {"base": 5, "net": 5, "comm": 5, "c10d": 15}  # files a compiler run: of those without torch as many as CMake's


def sources(layer, together):
    """Files that include up to `together` sources of the layer each. Rewritten only where they change."""
    files = sorted((f for f in (ROOT / "starling" / layer).rglob("*.cc") if not f.name.endswith("_test.cc")), key=str)
    for first in range(0, len(files), together):
        text = "".join(f'#include "{f.relative_to(ROOT)}"\n' for f in files[first:first + together])
        path = BUILD / "sources" / f"{layer}_{first // together}.cc"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        yield os.path.relpath(path, HERE)


os.chdir(HERE)
setup(
    ext_modules=[CppExtension(
        "starling_c10d._C",
        [s for layer, together in TOGETHER.items() for s in sources(layer, together)] + ["starling_c10d/module.cc"],
        include_dirs=[str(ROOT)],
        define_macros=[("FMT_HEADER_ONLY", "1"), ("USE_C10D", None), ("USE_DISTRIBUTED", None)],
        extra_compile_args=["-std=c++20", "-O2", "-g0", "-fopenmp", "-fvisibility=hidden", "-Wno-psabi"],
        libraries=["crypto"])],
    cmdclass={"build_ext": BuildExtension})
