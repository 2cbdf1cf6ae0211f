"""Charts of the dashboard, drawn on the server as SVG: each with a table of what it shows.

A chart knows numbers and words, neither tunings nor requests. Colours are classes of app.css, so
that light and dark need no second drawing.
"""
