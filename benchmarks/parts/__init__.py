"""What benchmarks of whole runs share: a model, environments that take their time, a runner."""
