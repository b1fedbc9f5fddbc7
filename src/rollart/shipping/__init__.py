"""Shipping a reward function: packages for platforms, a server for trying it, samples.

Invariant: a package holds the function's own files, the project's few that meet it, and what was
generated; nothing else of the user's folder. Imports core only.
"""
