"""The pages of the web interface: one module or package for each entry of the navigation."""
