"""Deployment: the same methods between organisations, on NVIDIA FLARE (extra `fedmend[flare]`)."""
