"""Dashboard, reports and papers, read from the folders of runs."""
