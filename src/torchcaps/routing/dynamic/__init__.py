"""Dynamic routing (Sabour, Frosst, Hinton 2017)."""
