"""`sumpter bench tenants`: many jobs on one server, and what each gets of it.

The server and the coordinator are the real commands; each job is a process that holds all workers
of the job, which only submit and wait. All jobs run at once for a while, then one alone, in turns.
"""
