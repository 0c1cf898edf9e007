"""Variational Bayes routing (Ribeiro, Leontidis, Kollias 2020)."""
