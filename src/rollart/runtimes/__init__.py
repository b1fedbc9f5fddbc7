"""The machines a job runs on: one module a runtime, none of which knows another."""
