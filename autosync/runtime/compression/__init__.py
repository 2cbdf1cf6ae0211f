"""What messages carry in place of dense sums of floats: fewer bits, factors, touched rows. Knows
the layout and transport."""
