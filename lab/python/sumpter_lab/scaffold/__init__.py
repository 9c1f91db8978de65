"""What experiments share: emulated clusters, the processes of jobs, records, tables, progress."""
