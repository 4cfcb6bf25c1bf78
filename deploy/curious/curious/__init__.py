"""An app that sends its ward's table to the server. It knows nothing of fl-dp."""
