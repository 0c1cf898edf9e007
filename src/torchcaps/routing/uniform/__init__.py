"""Uniform routing: every child shares itself equally, nothing is routed."""
