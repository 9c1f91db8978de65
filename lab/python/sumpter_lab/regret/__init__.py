"""`sumpter bench regret`: what tuners lose against the best sizes, in virtual time.

Surfaces are those of `sumpter_lab.whatif`, at full size: exact, without noise, so that a tuner is
judged by its choices alone. What the simulation leaves out (processor time of a message, losses)
is left out here as well.
"""

from sumpter_lab.regret.cells import Cell, Surface
from sumpter_lab.regret.play import Played, play

__all__ = ["Cell", "Played", "Surface", "play"]
