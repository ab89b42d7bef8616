"""Entry point of ``python -m ctr``."""

import sys

from ctr.cli import main

if __name__ == "__main__":
    sys.exit(main())
