"""The gradients of a model: when each is complete, their exchange, and updates that wait."""
