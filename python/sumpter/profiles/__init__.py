"""Profiles: what one training iteration computes, when its gradients get ready, and their sizes.

    from sumpter import profiles

    profile = profiles.load("resnet50.profile.json")
    print(profile.name, profile.bytes, profile.iteration_s)

A profile is recorded from a run, imported from another tool's log, or computed from a published
architecture. `sumpter bench replay` plays it. `docs/profiles.md` describes the file.
"""

from sumpter._errors import ProfileError
from sumpter.profiles.arithmetic import FLOPS_PER_S, NAMES, published
from sumpter.profiles.file import FORMATS, VERSION, load, save
from sumpter.profiles.model import Layer, Profile, Tensor
from sumpter.profiles.netai import additions

__all__ = [
    "FLOPS_PER_S",
    "FORMATS",
    "NAMES",
    "VERSION",
    "Layer",
    "Profile",
    "ProfileError",
    "Tensor",
    "additions",
    "load",
    "published",
    "save",
]
