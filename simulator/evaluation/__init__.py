"""How well simulators rank strategies and domains that they have not seen: measured data sets, and
the tables made of them. Imports simulator/learned and below; nothing of the simulator imports it."""
