"""What the search finds, and what looking costs."""
