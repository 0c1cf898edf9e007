"""Self-routing (Hahn, Pyeon, Kim 2019)."""
