"""Every source of the table passes the checks that a source has to pass."""
