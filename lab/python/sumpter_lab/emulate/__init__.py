"""`sumpter bench`: instruments that show how far Sumpter is from the limit of a network.

`emulate` builds a cluster of network namespaces on one Linux machine and measures every (n, k)
cell against the optimum; `allreduce` measures latency and goodput on the cluster it is launched
on. Modules that run inside measured processes (rank.py, probe.py) import torch or nothing; what
drives them imports neither torch nor matplotlib until it is needed.
"""
