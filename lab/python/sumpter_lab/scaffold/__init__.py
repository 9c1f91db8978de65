"""What experiments share: emulated clusters, teams of processes, records, tables, progress."""
