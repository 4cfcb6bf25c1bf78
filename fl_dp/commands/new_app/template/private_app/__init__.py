"""A Flower app whose every release is charged to a privacy budget before it happens."""
