"""What pipeline files say, and what becomes of it."""
