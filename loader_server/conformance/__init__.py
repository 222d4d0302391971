"""Checks that every source passes, for the sources of this package and for everybody's own.

    python -m loader_server.conformance my_data:Digits --arguments '{"count": 100}'
    python -m loader_server.conformance job.toml --stream train

prints a line for each check, and ends with status 1 if one failed.
"""
