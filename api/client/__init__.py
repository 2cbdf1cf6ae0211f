"""`autosync.Client`: the REST service as Python calls.

`rest_client` is the client, `service_connection` what its calls share; the others hold the calls, a
file for each kind of thing. Knows the service's answers, and neither its database nor its commands.
"""
