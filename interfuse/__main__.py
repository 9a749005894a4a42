"""`python -m interfuse`."""

import sys

from interfuse.cli import main

if __name__ == "__main__":
    sys.exit(main())
