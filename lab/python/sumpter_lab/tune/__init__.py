"""`sumpter bench tune`: tuners at work on a job that replays a profile on an emulated cluster.

The job plays as in `sumpter bench replay`, for as many iterations as it takes to see what a tuner
does, while links change their rate or a second job comes and goes. scaled.py makes a tuner see
the cluster that the divided one stands for; rank.py is what runs on a machine; run.py drives it
all; figures.py says what came out.
"""
