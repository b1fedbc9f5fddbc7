"""Platforms that run functions, on this machine's loopback, around their real runtimes.

Invariant: each is an async context manager that leaves no process, socket or task behind.
"""
