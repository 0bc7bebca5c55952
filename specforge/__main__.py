"""In: `python -m specforge VERB ...`. Out: what the command `specforge` does, where its script is not on the PATH."""

from __future__ import annotations

import sys

from specforge.cli import main

if __name__ == "__main__":
    sys.exit(main())
