"""The web interface in a real Chromium, before a real server and a real runner."""
