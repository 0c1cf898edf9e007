"""K-Means routing (Su 2018)."""
