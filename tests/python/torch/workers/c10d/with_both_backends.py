"""Runs an example over Sumpter and once more over Gloo, in the same processes.

    with_both_backends.py EXAMPLE FOLDER PORT

leaves the weights in FOLDER/sumpter.pt and FOLDER/gloo.pt. PORT is a free one for the second
process group, whose rendezvous must not meet what the first has left in its store. Importing a
framework takes longer than training here, hence one process for both.
"""

import os
import runpy
import sys

example, folder, port = sys.argv[1:]


def run(backend: str) -> None:
    sys.argv = [example, "--backend", backend, "--save", f"{folder}/{backend}.pt"]
    try:
        runpy.run_path(example, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise


run("sumpter")
if "accelerate" in sys.modules:
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
os.environ.update(MASTER_PORT=port, TORCHELASTIC_USE_AGENT_STORE="False")
run("gloo")
