"""Messages that were given up: tell of them, show them, let them go."""
