"""The pure core: it decides and never talks; no clock, socket, thread, log or random."""
