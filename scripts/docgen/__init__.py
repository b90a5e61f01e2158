"""Generators of documentation: each module makes the text of one page from the code. Start reading at `__main__`."""
