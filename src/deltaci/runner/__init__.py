"""The runner: takes work, proves that it is alive, stops when told."""
