"""Profiles: what one training iteration computes, when its gradients get ready, and their sizes.

    from sumpter import profiles

    profile = profiles.load("resnet50.profile.json")
    print(profile.name, profile.bytes, profile.iteration_s)

This is the data and its file, which `sumpter.tune(profile=...)` reads; `docs/user/profiles.md`
describes the file. The laboratory (`sumpter_lab.profiles`) records profiles, reads other tools'
logs and has published architectures.
"""

from sumpter._errors import ProfileError
from sumpter.profiles.file import VERSION, load, save
from sumpter.profiles.model import Layer, Profile, Tensor

__all__ = [
    "VERSION",
    "Layer",
    "Profile",
    "ProfileError",
    "Tensor",
    "load",
    "save",
]
