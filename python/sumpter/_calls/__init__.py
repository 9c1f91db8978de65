"""Calls on several host arrays at once, for fronts that hand arrays in: what they say, and how
their rounds are begun and waited for."""
