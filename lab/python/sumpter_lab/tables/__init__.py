"""The tables of docs/measurements, made from lab/records.

    python -m sumpter_lab.tables [PAGE ...]

A page names the record above a table of figures, as in

    <!-- table: emulated-share emulate-uniform/2026-11-28-n2-n4.csv -->

and the command replaces the table that follows. Paths are those in `lab/records`, a pattern stands
for several files, and a name in quotation marks behind a file says what a table calls its rows. A
test holds every such table against its record.
"""
