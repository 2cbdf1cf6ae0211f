"""What only the dashboard's pages show: headlines, chips, comparisons, points of charts.

May import the views above it, which do not import it.
"""
