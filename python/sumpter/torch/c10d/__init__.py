"""The torch.distributed backend named "sumpter": c10d is torch's name for that layer."""
