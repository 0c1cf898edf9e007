"""EM routing (Hinton, Sabour, Frosst 2018)."""
