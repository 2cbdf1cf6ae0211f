"""What messages carry in place of dense float sums: fewer bits, factors, touched rows."""
