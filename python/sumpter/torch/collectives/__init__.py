"""Collectives on torch tensors, which the interfaces of Horovod and BytePS share."""
