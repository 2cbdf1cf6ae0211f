"""The REST service and its dashboard: routes, requests, refusals, pages.

May import views, engine and db. A request becomes a domain object here, so that no other package
knows HTTP.
"""
