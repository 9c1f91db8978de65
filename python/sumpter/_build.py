"""What Horovod scripts ask about the build of their library, answered for Sumpter.

None of the libraries that Horovod can use is in Sumpter, which sums by itself, in host memory.
So every answer is no, and scripts take the way that needs none of them: an Adasum script does not
scale its learning rate by local_size(), which is right only where NCCL sums inside the machine
first; one that mixes mpi4py with Horovod gets the answer that it must not.
"""


def mpi_threads_supported() -> bool:
    """Whether MPI may be called from several threads: no, since MPI is never initialized."""
    return False


def mpi_enabled() -> bool:
    """Whether MPI coordinates the ranks: no, a coordinator of Sumpter's own does."""
    return False


def mpi_built() -> bool:
    """Whether MPI was compiled in: no."""
    return False


def gloo_enabled() -> bool:
    """Whether Gloo coordinates the ranks: no, a coordinator of Sumpter's own does."""
    return False


def gloo_built() -> bool:
    """Whether Gloo was compiled in: no."""
    return False


def nccl_built() -> int:
    """The version of NCCL that was compiled in: 0, none."""
    return 0


def ddl_built() -> bool:
    """Whether IBM's DDL was compiled in: no."""
    return False


def ccl_built() -> bool:
    """Whether Intel's oneCCL was compiled in: no."""
    return False


def cuda_built() -> bool:
    """Whether CUDA was compiled in: no."""
    return False


def rocm_built() -> bool:
    """Whether ROCm was compiled in: no."""
    return False
