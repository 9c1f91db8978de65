"""What every front is made of; it imports no framework and no front.

A front turns a framework's arrays into memory and results, and leaves the rest to these modules:

- `membership`: the session of this process, shared by all fronts; `session` is its class;
- `rendezvous` and `seat`: how a process finds its job;
- `names` and `process_sets`: under which name, and among which ranks, an operation is matched;
- `tensor`: declared tensors, of which rounds are submitted; `handles`: operations in flight;
- `callbacks` and `deadlines`: threads that call back when an operation is done, or is late;
- `reduction` and `pieces`: what collectives share that needs no array of a framework;
- `streams`: what a front implements for a device; `staging`: rounds on a device's memory, through
  host memory; `cuda_driver`: calls of NVIDIA's driver for an implementation of `streams`.
"""
