"""What every front is made of; it imports no framework and no front.

A front turns a framework's arrays into memory and results, and leaves the rest to these modules:

- `membership`: the session of this process, shared by all fronts; `session` is its class;
- `rendezvous` and `seat`: how a process finds its job;
- `names` and `process_sets`: under which name, and among which ranks, an operation is matched.
"""
