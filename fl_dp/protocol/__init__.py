"""Messages that cross the wire between server and client: keys, records, actions."""
