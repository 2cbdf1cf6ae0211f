"""Measures datasets: many strategies of several domains, over days."""
