"""Messages that cross the wire between server and client: keys, records, actions.

They may know Flower's messages and what travels in them; neither side of the wire.
"""
