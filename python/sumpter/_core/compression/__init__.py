"""Compression: codecs and their arguments, what callers choose, which tensors it is for."""
