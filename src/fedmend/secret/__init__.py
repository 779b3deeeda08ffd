"""Sums over neighbours in other silos, under secret sharing."""
