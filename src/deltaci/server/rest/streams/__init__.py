"""Live streams of events and logs: one encoding per event for all subscribers, and replay from any position."""
