"""The command `distillmatch`, which `python -m distillmatch` is as well.

What takes time to import is imported where Ctrl-C is heard already.
"""

import sys


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        from distillmatch.cli import main as run  # noqa: PLC0415

        return run()
    except KeyboardInterrupt:
        print("distillmatch: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
