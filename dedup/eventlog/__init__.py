"""The event log of the audit: what the shim tells, and its way into Parquet."""
