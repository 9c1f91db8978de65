"""Ends the processes of a launcher that vanished (kill -9, out of memory).

Run as a script by the launcher, which writes `+GROUP` for each process group it starts and
`-GROUP` for each that has ended. When the pipe closes, the launcher is gone: whatever is still on
the list is killed. A parent-death signal would reach only direct children, not what those started.
"""

import os
import signal
import sys


def main() -> None:
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    main()
