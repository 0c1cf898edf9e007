"""Operators of routing: for each family schema, fake kernel and autograd, once for every device.

A device brings bodies for them: `torchcaps.native` those of the CPU.
"""
