"""What a person looks at: progress, summaries and plots. Only numbers that are public anyway."""
