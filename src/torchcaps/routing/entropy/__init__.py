"""Entropy-regularised routing (Wang and Liu 2018)."""
