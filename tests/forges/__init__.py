"""Tests of `deltaci.forges`: webhooks in, statuses and merges out."""
