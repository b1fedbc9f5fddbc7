"""Machines, links and models as numbers, and the seconds that these make of work.

Invariant: every number comes from a catalogue, a `config.json` or the roofline's constants.
"""
