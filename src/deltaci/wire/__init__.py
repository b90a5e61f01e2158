"""What travels between server and runner."""
