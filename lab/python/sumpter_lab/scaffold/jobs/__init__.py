"""The processes of a job on the machines of an experiment, and the data of its rounds."""
