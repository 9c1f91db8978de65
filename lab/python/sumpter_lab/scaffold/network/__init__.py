"""The emulated network: machines as namespaces, their links, and what those really carry."""
