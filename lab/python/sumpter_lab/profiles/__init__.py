"""Where profiles come from: recording, published architectures, logs of other tools.

    from sumpter_lab import (profiles)

    profile = profiles.published("resnet50")

`sumpter.profiles` is the data and its file. `record` needs torch and is imported by itself.
"""

from sumpter_lab.profiles.arithmetic import FLOPS_PER_S, NAMES, published
from sumpter_lab.profiles.formats import FORMATS, load
from sumpter_lab.profiles.netai import additions

__all__ = ["FLOPS_PER_S", "FORMATS", "NAMES", "additions", "load", "published"]
