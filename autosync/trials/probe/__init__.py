"""What single messages cost, timed."""
