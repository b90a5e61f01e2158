"""The one write path and what hangs on it: the applier, the timers, the feed, the queue."""
