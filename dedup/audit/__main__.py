"""Run one command of the audit: ``python -m dedup.audit``, or this file given to spark-submit."""

import sys

from dedup.audit.command import main

if __name__ == "__main__":
    sys.exit(main())
