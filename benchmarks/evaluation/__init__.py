"""How well simulators rank what searches pick, and what searches find with them."""
