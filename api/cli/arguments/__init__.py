"""What is typed for a model, a cluster, a profile, a strategy or a simulator, and what it names.

Commands load their inputs here; knows the documents and importers, and nothing of commands.
"""
