"""``python -m dedup.cli`` is ``dedup``."""

from dedup.cli import main

main()
