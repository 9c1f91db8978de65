"""`sumpter bench diloco`: training over a wide-area link, synchronously and with few exchanges.

path.py is one direction of the link, free of sockets and of the clock; relay.py carries packets
through two of them; wide_area.py builds two sites around a relay; rank.py trains, text.py has the
model and its data; run.py takes turns and report.py prints.
"""

from sumpter_lab.diloco.run import main

__all__ = ["main"]
