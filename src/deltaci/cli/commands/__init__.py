"""One module per group of commands; each is imported only when one of its commands runs."""
