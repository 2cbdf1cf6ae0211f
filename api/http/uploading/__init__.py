"""Reads what is posted, large documents in a process of their own. Knows the database, no route."""
