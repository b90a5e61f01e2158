"""The one write path and what hangs on it: the engine, the timers, the feed, the queue."""
