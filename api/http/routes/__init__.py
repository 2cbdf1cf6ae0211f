"""Paths, a file for each kind of thing. A route is a dependency, one call, an answer."""
