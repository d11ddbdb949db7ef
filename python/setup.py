"""Compiles the Python module against the installed torch.

The module has the collectives (all files of the layers base, net, comm and c10d) and the training loops (only
the files that the exchanges of own loops use). One compiler run compiles several files, because headers take
most of its time.
"""
import os
import pathlib

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
BUILD = ROOT / "build" / "python"
# Files per compiler run, for each layer, as in CMake's build. Kernels are compiled alone, because their names
# may be equal.
TOGETHER = {"base": 5, "net": 5, "comm": 5, "c10d": 15, "spec": 6, "codec": 1, "optim": 1, "data": 1, "nn": 2, "server": 1, "parallel": 9}
# Layers whose loops over many values are vectorized. GCC does it at this level.
VECTORIZED = {"codec": "O3", "optim": "O3"}
# The files of layers that are not compiled as a whole. STARLING_OWN_LOOPS_ONLY leaves out what needs other
# files.
FILES = {
    "spec": "batch_share codec_table config device_refusal emulation enum_words extensions hogwild_refusal "
            "mesh neighbor_graph on_failure optimizer_refusal pair_refusal read_keys recipes schema "
            "schema_table section sharded_codec_refusal source_folder strategy_table team_refusal text_model "
            "validate value warm_up",
    "data": "source",
    "nn": "layers/gradient_slot model",
    "server": "service_settings",
    "optim": "finite hogwild_update layer_rule sum_of_squares update_rule",
    "parallel": "all_reduce/all_reduce all_reduce/all_reduce_update all_reduce/host_reducer "
                "all_reduce/make_all_reduce all_reduce/network_reducer all_reduce/weight_sum "
                "replica/batch_parts replica/broadcast_tensor replica/codec_shapes replica/coded_mean "
                "replica/default_generator replica/flat_layout replica/flat_memory replica/flat_replica "
                "replica/hogwild_team replica/message_stats replica/model_parts replica/own_gradients "
                "replica/replica replica/replica_hash replica/replica_strategy replica/thread_team "
                "zero/sharded_optimizer",
}
# Every file of starling/parallel itself may be an exchange for own loops, but for these.
NOT_FOR_OWN_LOOPS = {"ad_psgd", "async_easgd", "delayed", "hybrid", "meetings", "parameter_server",
                     "server_team", "server_worker", "tensor_parallel"}


def sources(layer, together):
    """Yields files that each include up to `together` sources of the layer.

    Writes a file only if its text changes.
    """
    folder = ROOT / "starling" / layer
    if layer in FILES:
        files = [folder / f"{name}.cc" for name in FILES[layer].split()]
        if layer == "parallel":
            exchanges = (f for f in folder.glob("*.cc") if not f.stem.endswith("_test") and f.stem not in NOT_FOR_OWN_LOOPS)
            files = sorted({*files, *exchanges}, key=str)
    else:
        files = sorted((f for f in folder.rglob("*.cc") if not f.name.endswith("_test.cc")), key=str)
    for first in range(0, len(files), together):
        text = f'#pragma GCC optimize ("{VECTORIZED[layer]}")\n' if layer in VECTORIZED else ""
        text += "".join(f'#include "{f.relative_to(ROOT)}"\n' for f in files[first:first + together])
        path = BUILD / "sources" / f"{layer}_{first // together}.cc"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        yield os.path.relpath(path, HERE)


os.chdir(HERE)
setup(
    ext_modules=[CppExtension(
        "starling_c10d._C",
        [s for layer, together in TOGETHER.items() for s in sources(layer, together)]
        + ["starling_c10d/module.cc", "starling_c10d/training_loop.cc"],
        include_dirs=[str(ROOT)],
        define_macros=[("FMT_HEADER_ONLY", "1"), ("USE_C10D", None), ("USE_DISTRIBUTED", None), ("STARLING_OWN_LOOPS_ONLY", "1")],
        # The rounding of the update rules and codecs is that of CMake's build (cmake/layers.cmake).
        extra_compile_args=["-std=c++20", "-O2", "-g0", "-fopenmp", "-fvisibility=hidden", "-Wno-psabi",
                            "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"],
        libraries=["ssl", "crypto", "xxhash"])],
    cmdclass={"build_ext": BuildExtension})
