"""Confidence against what happened: records of rounds, sequential temperature scaling (METHODS 6.1), measures."""
