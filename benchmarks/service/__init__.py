"""The service under load, over a database of many trials."""
