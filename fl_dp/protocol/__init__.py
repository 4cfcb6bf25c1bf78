"""What crosses the wire between server and client."""
