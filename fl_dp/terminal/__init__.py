"""The terminal: tables, numbers and progress as commands and pages show them."""
