"""Handwritten digits, learnt by a hundred clients under differential privacy."""
