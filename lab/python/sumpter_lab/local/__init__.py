"""Benchmarks that need one machine only: kernels, a server under load, ablations.

Each measures in Rust or beside it, interleaves what it compares, checks every result, and gives
rows: flat dictionaries that become a table, JSON or CSV. Only the rivals and the optimizers need
torch, which is imported where it is used and may be missing.
"""
