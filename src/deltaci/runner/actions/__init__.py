"""What a runner does itself, where a step says `uses`."""
