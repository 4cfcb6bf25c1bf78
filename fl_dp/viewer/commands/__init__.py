"""The commands of the viewer, one file each: dashboard, report, runs."""
