"""Delta CI: continuous integration whose every change of state is a pure, fenced, recorded decision."""

from importlib.metadata import version

__version__ = version("deltaci")
