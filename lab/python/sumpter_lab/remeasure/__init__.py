"""Runs the commands of pages of docs/measurements again, in a clone of the repository.

    python -m sumpter_lab.remeasure docs/measurements/latency.md -o FOLDER
    python -m sumpter_lab.remeasure docs/measurements/*.md --without chaos --list

The commands are those of the pages' `sh` blocks, one after another, from the root of the clone.
Each has a number on its page; what it prints and what it writes lie in FOLDER under the name of the
page and that number, with the figures of measurements as CSV or JSON. `runs.json` there says for
each how long it took, how it ended, how busy the cores were before, and on which commit and
machine, as a description in `lab/records` needs it. A command that has succeeded there on the same
commit is not run again.

    python -m sumpter_lab.remeasure.keep FOLDER

puts the results into `lab/records`, in place of those of the same commands.
"""
