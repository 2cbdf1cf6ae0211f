"""Who is let in and what they may do: tokens and keys, browsers' sessions, scopes, hosts, forms,
and how often. Knows the database and refusals, no route."""
