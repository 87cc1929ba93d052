"""The command line: `sqlreplay --help`. Data goes to stdout, everything else to stderr."""

from sqlreplay.cli.main import app

__all__ = ["app"]
