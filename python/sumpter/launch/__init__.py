"""`sumpter run`: a whole job (coordinator, servers, workers) on this machine.

For trying and testing, and for one machine with several workers; workers on several machines are
started by torchrun, Ray, Slurm or Kubernetes. Invariants: nothing that was started outlives the
launcher, however it ends; the exit code is that of the first worker that failed; every line of
output says who wrote it.
"""

from sumpter.launch.environment import Shape
from sumpter.launch.job import JobSpec, launch

__all__ = ["JobSpec", "Shape", "launch"]
