"""The fleet as it lives: health, lives, leaving, and who is held back."""
