"""The trainer of a simulation, and the way of its weights to the engines.

Invariant: there are no weights, only versions and bytes; engines ask the store, nobody tells them.
"""
