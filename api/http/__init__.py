"""The REST service and its dashboard."""
