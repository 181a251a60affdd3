"""Show what dedup is for: publishers, a link and a shim that fail again and again, and an oracle that counts."""

from dedup.demo.command import command

__all__ = ["command"]
