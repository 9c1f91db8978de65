"""The bugs that are planted, each with what is to find it.

Each breaks one of the invariants of docs/design/overview.md.
"""

from __future__ import annotations

from bugs import placed, protocol
from bugs.finders import Finder, Mutant
from bugs.protocol import HELPERS

__all__ = ["HELPERS", "MUTANTS", "Finder", "Mutant"]

MUTANTS = [*protocol.MUTANTS, *placed.MUTANTS]
