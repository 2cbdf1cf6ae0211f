"""The runtime against torch's own engines: seconds, bytes, exactness, schedules."""
