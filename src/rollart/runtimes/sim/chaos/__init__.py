"""Chaos: faults by seed around the ports of a run, and the promises that must hold all the same."""
