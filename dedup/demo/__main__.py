"""``python -m dedup.demo`` is ``dedup demo``."""

from dedup.demo import command

command(prog_name="dedup demo")
