"""The words of the house: records, ports, events, errors and configuration.

Everything else may import this room; it imports the standard library, pydantic and numpy only.
"""
