"""What is made of a run's events: the log on disk, live progress, metrics, summary and plots.

Nothing here can stop or slow training, and nothing here knows anything but events.
"""
