"""Joining a job from JAX."""

from sumpter._core import membership
from sumpter._core.process_sets import adopt
from sumpter.jax.primitive import forget_failures


def init(process_sets: object = None, **settings: object) -> None:
    """Joins the job; does nothing if this process has joined already.

    If the job has failed, or a rank has left it, all ranks join anew; process sets have to be added
    again then. `process_sets` are added at once. Settings given by name override the environment.
    """
    before = membership.peek()
    session = membership.join(settings)
    if session is not before:
        # Those of the programs of the job before.
        forget_failures()
        try:
            adopt(process_sets)
        except BaseException:
            membership.shutdown()
            raise
