"""An independent checker of event logs, written from the documents: it imports nothing of the engine or the core."""
