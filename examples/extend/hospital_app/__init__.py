"""A Flower app of forty hospitals."""
