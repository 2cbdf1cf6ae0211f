"""How well simulators rank strategies and domains that they have not seen: measured data sets and
the tables made of them. Imports simulator/learned and below; the simulator does not import it.
"""
