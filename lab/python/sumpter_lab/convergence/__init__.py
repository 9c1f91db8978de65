"""`sumpter bench convergence`: the losses that training ends with, by codec.

spec.py says what is trained and compared, tasks.py has the models and their data, rank.py is a
worker, run.py trains one codec after the other, report.py makes rows of it.
"""
