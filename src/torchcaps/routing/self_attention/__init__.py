"""Self-attention routing (Mazzia, Salvetti, Chiaberge 2021)."""
