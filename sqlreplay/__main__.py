"""`python -m sqlreplay`: the command line, where the console script is not on the path."""

from sqlreplay.cli import app

if __name__ == "__main__":
    app(prog_name="sqlreplay")
