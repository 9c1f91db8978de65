"""`sumpter run`: a whole job (coordinator, servers, workers) on this machine and others.

Other machines are reached by the user's own ssh. Invariants: nothing that was started outlives
the launcher, however it ends; the exit code is that of the first worker that failed; every line
of output says who wrote it; the job's token is on no command line and in no log.
"""

from sumpter.launch.job import JobSpec, launch
from sumpter.launch.layout import Layout, on_hosts, on_one_machine, parse_hostfile, parse_hosts
from sumpter.launch.remote import RemoteShell
from sumpter.launch.supervise import Elastic

__all__ = [
    "Elastic",
    "JobSpec",
    "Layout",
    "RemoteShell",
    "launch",
    "on_hosts",
    "on_one_machine",
    "parse_hostfile",
    "parse_hosts",
]
