"""`sumpter bench replay`: real communication beside compute that is a timed wait.

A profile says how long each layer computes and when each gradient is ready. Workers and servers on
an emulated cluster send and sum tensors of those sizes at those times, so that the timing of a
cluster of GPUs can be had on a machine without any. script.py and play.py are free of torch and of
the clock; rank.py is what runs on a machine; run.py builds the cluster and takes turns.
"""
