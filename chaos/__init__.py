"""Faults on real processes: what is promised of Delta CI, measured from the outside."""
