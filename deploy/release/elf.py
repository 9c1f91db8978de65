"""What the header of an ELF file says: for which machine it is, and whether it stands alone."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_MACHINES = {62: "x86_64", 183: "aarch64"}
_INTERPRETER = 3  # PT_INTERP: the dynamic linker that starts the program


@dataclass(frozen=True)
class Elf:
    """A 64-bit ELF file of the byte order of all machines here."""

    machine: str
    static: bool


def read(content: bytes) -> Elf | None:
    """What a file is, or `None` if it is no ELF file."""
    if content[:6] != b"\x7fELF\x02\x01" or len(content) < 64:
        return None
    (machine,) = struct.unpack_from("<H", content, 18)
    (table,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    places = [table + size * index for index in range(count)]
    if places and places[-1] + size > len(content):
        return None
    kinds = [struct.unpack_from("<I", content, place)[0] for place in places]
    return Elf(_MACHINES.get(machine, f"machine {machine}"), _INTERPRETER not in kinds)


def no_static_program(content: bytes, machine: str) -> str | None:
    """Why this cannot be the server's program for `machine`; `None` if it can."""
    found = read(content)
    if found is None:
        return "it is no ELF program"
    if found.machine != machine:
        return f"it is a program for {found.machine}, and {machine} is wanted"
    if not found.static:
        return "it needs a dynamic linker, which an image from scratch does not have"
    return None
