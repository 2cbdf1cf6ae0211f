"""How well simulators rank strategies and domains that they have not seen: a table a question."""
