"""Messages that cross the wire between server and client: keys, records, actions.

This room may know Flower's messages and their content, and neither side of the wire.
"""
