"""Dashboard: runs, sweeps and ledgers in a browser, for whoever has the token."""
