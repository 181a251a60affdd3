"""Run shims as a process: a thread for each queue, signals, log, metrics and health."""
