"""Scripted fakes and conformance suites for every port, for people who write backends and policies.

Invariant: a fake does exactly what its script says, from seeds, so a test reads as the schedule it
tests; under `run_virtual` a test of hours takes milliseconds and repeats to the last event.
"""
