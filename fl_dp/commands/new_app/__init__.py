"""New projects: a Flower app that is private from its first line, written from a template."""
