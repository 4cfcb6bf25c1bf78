"""DP-SGD inside a client: gradients of single records, clipped and summed.

Nothing here knows Flower, a node or its owner.
"""
