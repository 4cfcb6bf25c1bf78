"""Dashboard: runs, sweeps and ledgers in a browser, for readers who have the token."""
