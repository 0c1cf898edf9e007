"""Inverted dot-product attention routing (Tsai, Srivastava, Goh, Salakhutdinov 2020)."""
