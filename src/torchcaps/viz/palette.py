"""Colours and markers of all pictures."""

# Okabe and Ito's colours, told apart by the colour-blind; every use adds a marker or line style of its own for print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
MARKERS = ("o", "^", "s", "D", "v")
