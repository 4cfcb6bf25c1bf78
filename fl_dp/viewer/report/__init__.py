"""Views for a person: progress, summaries and plots, all of numbers that are public anyway."""
