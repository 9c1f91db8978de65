"""`sumpter bench scale`: what membership costs by the number of members, without training."""
