"""Faults in a training job of real processes: whether it ends with the bytes of a quiet run.

`faults` decides what happens when, from a seed; `site` is where processes run and what can be done
to their network; `job` starts and ends them; `inject` does the faults; `watch` sees how training
goes on; `outcome` judges; `run` is the whole.
"""
