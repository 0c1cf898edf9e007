"""Heinsen routing (Heinsen 2019)."""
