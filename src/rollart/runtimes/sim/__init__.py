"""Modelled hardware under virtual time: a week of a cluster in minutes, the same way each time."""
