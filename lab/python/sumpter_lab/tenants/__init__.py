"""`sumpter bench tenants`: many jobs on one server, and what each gets of it.

The server and the coordinator are the real commands; each job is a process that holds all workers
of the job, which only submit and wait. Windows of all jobs and of one alone are interleaved.
"""
