"""``python -m specflow``."""

from specflow.cli.main import app

if __name__ == "__main__":
    app(prog_name="specflow")
