"""Measures datasets: many strategies of several domains, over days. Imports designs and sampler;
it is no tuning."""
