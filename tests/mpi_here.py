"""The MPI of the tests: that of `mpiexec`, or of the command that STARLING_MPIEXEC names.

The engine in STARLING_BUILD must be built with the same MPI.
"""
import os
import shutil
import subprocess

from program import BUILD, environment

MPIEXEC = os.environ.get("STARLING_MPIEXEC", "mpiexec")
PLUGIN = BUILD / "lib/starling/libstarling_mpi.so"
ENGINE = ["--set", "comm.engine=mpi"]


def missing():
    """Returns why no MPI job can be started here, or ""."""
    if not shutil.which(MPIEXEC):
        return f"MPI is not installed here: no {MPIEXEC}"
    return "" if PLUGIN.exists() else f"MPI is not installed here: its headers were not there when {BUILD.name} was configured"


def is_open_mpi():
    told = subprocess.run([MPIEXEC, "--version"], capture_output=True, text=True, timeout=60, env=environment()).stdout
    return any(name in told for name in ("Open MPI", "OpenRTE", "PRRTE"))


def mpiexec():
    """Returns the start of an mpiexec command.

    By default, Open MPI refuses root and more ranks than cores, and binds each rank to a core.
    """
    return [MPIEXEC, *(["--oversubscribe", "--allow-run-as-root", "--bind-to", "none"] if is_open_mpi() else [])]


def variables(folder):
    """Returns environment variables that restrict MPI to shared memory, and mpiexec itself to loopback."""
    return {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "^openib,tcp", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
            "OMPI_MCA_mpi_yield_when_idle": 1, "OMPI_MCA_oob_tcp_if_include": "lo", "OMP_NUM_THREADS": 1, "HOME": folder, "TMPDIR": folder}
